"""Claims: what an attempt asks of the store, and what an existing record means for it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from uuid import UUID

from django_idempotency import journal, keys
from django_idempotency.records import NAMED, Record, State, as_duration

__all__ = [
    "RESOLUTIONS",
    "ClaimAgain",
    "ClaimRequest",
    "Decision",
    "Resolution",
    "decide",
    "placeholder",
]

#: The actions of an operator on a record.
RESOLUTIONS = ("release", "expire", "complete", "resume")


@dataclass(frozen=True)
class ClaimRequest:
    """
    The facts from which a store decides, in one atomic step, whether an attempt may run.

    Durations are timedelta or seconds, and are kept as timedelta.
    """

    record_id: UUID
    scope: str = field(repr=False)
    key: str = field(repr=False)
    operation: str = ""
    #: ``"single"``, ``"joined"`` or ``"separate"``: how this attempt commits.
    transaction: str = "separate"
    #: 32 bytes each, newest secret first; the first one is stored, any of them may match.
    fingerprints: tuple[bytes, ...] = field(default=(), repr=False)
    #: The unkeyed digest of the request's content, from which keys are derived. Never stored.
    digest: bytes = field(default=b"", repr=False)
    #: Drawn once per attempt, and equal in each resend of its claim.
    token: UUID = field(default_factory=keys.new_token, repr=False)
    lease: timedelta = timedelta(seconds=60)
    retention: timedelta = timedelta(hours=24)
    max_duration: timedelta = timedelta(hours=1)
    on_stale: str = "take_over"
    #: In ``single``: the block of the work follows the claim, with nothing in between that writes.
    opens_work: bool = False
    #: Whether the work has steps: without them a record with a journal is not claimed (S10).
    steps: bool = False

    def __post_init__(self) -> None:
        """Raise TypeError for a value that is not a duration."""
        if type(self.lease) is type(self.retention) is type(self.max_duration) is timedelta:
            return  # the types of every policy
        for name in ("lease", "retention", "max_duration"):
            object.__setattr__(self, name, as_duration(getattr(self, name)))

    @property
    def fingerprint(self) -> bytes | None:
        """The fingerprint that a won claim stores."""
        return self.fingerprints[0] if self.fingerprints else None

    @property
    def named(self) -> dict[str, str]:
        """The texts that a won claim stores, by their columns."""
        return dict(zip(NAMED, _named(self), strict=True))

    @property
    def seed(self) -> UUID:
        """The seed of derived keys: the record id, and the content of the request."""
        return keys.seed(self.record_id, self.digest) if self.digest else self.record_id

    @property
    def lifetime(self) -> timedelta:
        """
        How long the record lives from a won claim on, unless an ending changes that.

        A tenth longer than the retention: a completion within that tenth need not change it (R73).
        """
        return max(self.retention + self.retention / 10, self.max_duration + self.lease)

    @property
    def noted_lifetime(self) -> timedelta:
        """
        How long the record lives from a note on at most; a note leaves half of it, or more (S4).

        Half of it covers the longest time until the next note.
        """
        return max(self.lifetime, 2 * (self.max_duration + self.lease))


_named = attrgetter(*NAMED)


class Decision(enum.Enum):
    """What a record means for an attempt that finds it."""

    REPLAY = "replay"
    IN_PROGRESS = "in progress"
    STALE = "stale"
    MISMATCH = "mismatch"
    CLAIM_AGAIN = "claim again"


def decide(record: Record, request: ClaimRequest) -> Decision:
    """Return what `record` means for the attempt that made `request`."""
    if record.expired or record.state is State.RELEASED:
        return Decision.CLAIM_AGAIN
    if record.fingerprint is not None and record.fingerprint not in request.fingerprints:
        return Decision.MISMATCH
    if record.state is State.COMPLETED:
        return Decision.REPLAY
    if record.steps is not None and not request.steps and not record.live:
        return Decision.STALE
    if record.state is State.FAILED:
        return Decision.CLAIM_AGAIN
    if record.live:
        return Decision.IN_PROGRESS
    return Decision.CLAIM_AGAIN if request.on_stale == "take_over" else Decision.STALE


class ClaimAgain(Exception):
    """The transaction's snapshot is older than the record: start it again before the work."""


def placeholder(request: ClaimRequest, now: datetime, place: str | None = None) -> Record:
    """Return a placeholder for a record whose row is not visible yet."""
    return Record(
        record_id=request.record_id,
        scope=request.scope,
        key=request.key,
        operation="",
        fingerprint=None,
        state=State.IN_PROGRESS,
        epoch=0,
        token=UUID(int=0),
        lease_until=None,
        created_at=now,
        updated_at=now,
        expires_at=None,
        attempts=1,
        result=None,
        error="",
        now=now,
        place=place,
    )


@dataclass(frozen=True)
class Resolution:
    """
    An operator's decision about a record, which had this epoch and state when the operator saw it.

    ``"release"`` makes a failed record, or one in progress under a lapsed lease, RELEASED.
    ``"complete"`` makes it COMPLETED with `result` for `retention`. ``"resume"`` makes it FAILED
    for `retention`, and keeps its steps: the same request goes on behind them. It may say of the
    call `step` that it was made, with `result`, or that it was `not_done`. While another call is
    uncertain, the record is still held. ``"expire"`` makes any record expire. A live lease prevents
    all four unless `force` is set. A journal grows within an epoch, by a call that was not there
    when the operator looked: with `noted`, the journal must still have this size. Raises ValueError
    for an unknown action or state and for arguments that do not go together, and TypeError for a
    retention that is not a duration and for a result that is not bytes.
    """

    action: str
    epoch: int
    state: State
    force: bool = False
    #: The envelope of the result, sealed if the alias has keys: of the work, or of the step.
    result: bytes | None = field(default=None, repr=False)
    retention: timedelta = timedelta(hours=24)
    step: str | None = None
    not_done: bool = False
    #: The size of the journal that the operator saw, in bytes; None for any.
    noted: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for invalid values."""
        if self.action not in RESOLUTIONS:
            allowed = ", ".join(RESOLUTIONS)
            raise ValueError(f"action must be one of {allowed}, not {self.action!r}.")
        has_result, has_step = self.result is not None, self.step is not None
        if has_result and not isinstance(self.result, bytes):
            kind = type(self.result).__name__
            raise TypeError(f"result is the envelope that `pack` returns, bytes, not {kind}.")
        if self.action == "resume":
            if has_result + self.not_done != has_step:
                raise ValueError('"resume" takes a step with a result or not_done, or no step.')
        elif has_step or self.not_done:
            raise ValueError('step and not_done go with the action "resume" alone.')
        elif has_result is not (self.action == "complete"):
            raise ValueError('Give a result with the action "complete", and with no other action.')
        object.__setattr__(self, "state", State(self.state))
        object.__setattr__(self, "retention", as_duration(self.retention))

    @property
    def entry(self) -> bytes:
        """What ``"resume"`` appends to the journal."""
        if self.step is None:
            return b""
        if self.result is None:
            return journal.withdrawn(self.step)
        return journal.entry(self.step, self.result)

    def saw(self, steps: bytes | None) -> bool:
        """Whether the operator saw this journal: within an epoch it only grows (S18)."""
        return self.noted in (None, len(steps or b""))

    def holds(self, steps: bytes | None) -> bool:
        """Whether a call stays uncertain once the entry stands behind these `steps` (S13)."""
        return self.action == "resume" and bool(journal.read((steps or b"") + self.entry).uncertain)
