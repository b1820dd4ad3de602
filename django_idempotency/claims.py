"""A claim: what an attempt asks of the store, and what a record that stands there means to it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django_idempotency import keys
from django_idempotency.records import Record, State, as_duration

__all__ = [
    "RESOLUTIONS",
    "ClaimAgain",
    "ClaimRequest",
    "Decision",
    "Resolution",
    "decide",
    "placeholder",
]

#: What an operator may do to a record.
RESOLUTIONS = ("release", "expire", "complete")


@dataclass(frozen=True)
class ClaimRequest:
    """
    What a store needs to decide, in one atomic step, whether an attempt may run.

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
    #: The unkeyed digest of what is asked for: derived keys are made of it. Never stored.
    digest: bytes = field(default=b"", repr=False)
    #: Drawn once per attempt and sent with each resend of it.
    token: UUID = field(default_factory=keys.new_token, repr=False)
    lease: timedelta = timedelta(seconds=60)
    retention: timedelta = timedelta(hours=24)
    max_duration: timedelta = timedelta(hours=1)
    on_stale: str = "take_over"

    def __post_init__(self) -> None:
        """Raise TypeError for a value that is not a duration."""
        if type(self.lease) is type(self.retention) is type(self.max_duration) is timedelta:
            return  # as every policy gives them
        for name in ("lease", "retention", "max_duration"):
            object.__setattr__(self, name, as_duration(getattr(self, name)))

    @property
    def fingerprint(self) -> bytes | None:
        """The fingerprint that a won claim stores."""
        return self.fingerprints[0] if self.fingerprints else None

    @property
    def seed(self) -> UUID:
        """What derived keys are made of: the record id, and what is asked for."""
        return keys.seed(self.record_id, self.digest) if self.digest else self.record_id

    @property
    def lifetime(self) -> timedelta:
        """How long the record lives from a won claim on, unless it is ended before."""
        return max(self.retention, self.max_duration + self.lease)


class Decision(enum.Enum):
    """What a record means to an attempt that comes upon it."""

    REPLAY = "replay"
    IN_PROGRESS = "in progress"
    STALE = "stale"
    MISMATCH = "mismatch"
    CLAIM_AGAIN = "claim again"


def decide(record: Record, request: ClaimRequest) -> Decision:
    """Return what `record` means to the attempt that asked with `request`."""
    if record.expired or record.state is State.RELEASED:
        return Decision.CLAIM_AGAIN
    if record.fingerprint is not None and record.fingerprint not in request.fingerprints:
        return Decision.MISMATCH
    if record.state is State.COMPLETED:
        return Decision.REPLAY
    if record.state is State.FAILED:
        return Decision.CLAIM_AGAIN
    if record.live:
        return Decision.IN_PROGRESS
    return Decision.CLAIM_AGAIN if request.on_stale == "take_over" else Decision.STALE


class ClaimAgain(Exception):
    """The transaction's snapshot is older than the record: start it again, before any work."""


def placeholder(request: ClaimRequest, now: datetime) -> Record:
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
    )


@dataclass(frozen=True)
class Resolution:
    """
    What an operator decided about a record that had this epoch and state when it was looked at.

    ``"release"`` makes a failed record, or one in progress under a lapsed lease, RELEASED;
    ``"complete"`` makes it COMPLETED with `result` for `retention`; ``"expire"`` ends the time of
    any record. A live lease stands against all three unless `force`. Raises ValueError for another
    action or state and for a completion without a result, TypeError for a retention that is no
    duration.
    """

    action: str
    epoch: int
    state: State
    force: bool = False
    result: bytes | None = field(default=None, repr=False)
    retention: timedelta = timedelta(hours=24)

    def __post_init__(self) -> None:
        """Raise ValueError and TypeError for what makes no sense."""
        if self.action not in RESOLUTIONS:
            allowed = ", ".join(RESOLUTIONS)
            raise ValueError(f"An operator can {allowed} a record, not {self.action!r}.")
        if (self.action == "complete") is not (self.result is not None):
            raise ValueError('A result goes with the action "complete", and with no other.')
        object.__setattr__(self, "state", State(self.state))
        object.__setattr__(self, "retention", as_duration(self.retention))
