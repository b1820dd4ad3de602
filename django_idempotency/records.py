"""What a store keeps and what passes between it and the engine: frozen data, and the lease."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.policy import duration_of, suggestion

__all__ = [
    "RESOLUTIONS",
    "ClaimRequest",
    "Filters",
    "Lease",
    "Outcome",
    "Page",
    "Proof",
    "Record",
    "State",
    "as_duration",
]

#: What an operator may do to a record; see `BaseStore.resolve`.
RESOLUTIONS = ("release", "expire", "complete")


def as_duration(value: timedelta | float) -> timedelta:
    """Return a timedelta, or a number of seconds, as a timedelta; raise TypeError for others."""
    duration = duration_of(value)
    if not isinstance(duration, timedelta):
        raise TypeError(f"A duration is a timedelta or a number of seconds, not {value!r}.")
    return duration


class State(str, enum.Enum):
    """The states of a record. Expired is not one of them: it is a comparison with the clock."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    #: May be claimed again, with the same fingerprint.
    FAILED = "FAILED"
    #: May be claimed again by anything: the fingerprint is forgotten.
    RELEASED = "RELEASED"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Record:
    """
    The stored state of one (scope, key), as the store saw it at ``now``.

    All times are aware and in UTC. ``fingerprint`` is None where it is forgotten (RELEASED) or not
    known (an attempt that has not written its row yet); ``lease_until`` is None where no lease
    is held or its end is not known.
    """

    record_id: UUID
    scope: str = field(repr=False)
    key: str = field(repr=False)
    operation: str
    fingerprint: bytes | None = field(repr=False)
    state: State
    epoch: int
    token: UUID = field(repr=False)
    lease_until: datetime | None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    attempts: int
    result: bytes | None = field(repr=False)
    error: str
    #: The store's clock when the record was read.
    now: datetime

    def __post_init__(self) -> None:
        """Raise StoreError for a value of another type: what a store gives back is input (R95)."""
        if self.fingerprint == b"":
            short = keys.short(self.record_id)
            raise StoreError(f"The stored record {short} is damaged: its fingerprint is empty.")
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            naive = isinstance(value, datetime) and value.tzinfo is None
            if not isinstance(value, kinds) or naive:
                raise StoreError(
                    f"The stored record {keys.short(self.record_id)} is damaged: its {name} is "
                    f"of another type."
                )

    @property
    def live(self) -> bool:
        """Whether an attempt holds the record now."""
        return self.state is State.IN_PROGRESS and (
            self.lease_until is None or self.lease_until > self.now
        )

    @property
    def expired(self) -> bool:
        """Whether the record's time is over: ``expires_at <= now``, and no live lease."""
        return self.expires_at is not None and self.expires_at <= self.now and not self.live

    @property
    def lease_left(self) -> float | None:
        """Seconds left of a live lease by the store's clock; None if that is not known."""
        if not self.live or self.lease_until is None:
            return None
        return (self.lease_until - self.now).total_seconds()

    @property
    def running_for(self) -> float | None:
        """
        Seconds since the attempt that holds the record began; None where `lease_left` is None.

        By the store's clock. A claim and a take-over write ``updated_at``, a renewal does not.
        """
        if self.lease_left is None:
            return None
        return max((self.now - self.updated_at).total_seconds(), 0)

    @property
    def stale(self) -> bool:
        """Whether an attempt left the record in progress and its lease has lapsed."""
        return self.state is State.IN_PROGRESS and not self.live


#: What each field of a record may be.
_KINDS: dict[str, tuple[type, ...]] = {
    "scope": (str,),
    "key": (str,),
    "operation": (str,),
    "fingerprint": (bytes, type(None)),
    "state": (State,),
    "epoch": (int,),
    "token": (UUID,),
    "lease_until": (datetime, type(None)),
    "created_at": (datetime,),
    "updated_at": (datetime,),
    "expires_at": (datetime, type(None)),
    "attempts": (int,),
    "result": (bytes, type(None)),
    "error": (str,),
    "now": (datetime,),
}


@dataclass(frozen=True)
class Filters:
    """Which records to browse: those that have all of what is not None."""

    state: State | None = None
    #: In progress under a lapsed lease, or not so.
    stale: bool | None = None
    operation: str | None = None
    scope: str | None = None
    #: With its scope it leads to its record; alone, the store reads until it has found it.
    key: str | None = None
    created_before: datetime | None = None
    created_after: datetime | None = None

    def __post_init__(self) -> None:
        """Take the name of a state for the state; raise ValueError for one that there is not."""
        if self.state is not None:
            object.__setattr__(self, "state", State(self.state))

    @classmethod
    def of(cls, given: Filters | Mapping[str, Any] | None) -> Filters:
        """Return what `browse` was given, which may be a mapping; raise TypeError, ValueError."""
        if isinstance(given, Filters):
            return given
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise TypeError(f"filters must be Filters or a mapping, not a {type(given).__name__}.")
        known = [item.name for item in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"Filters has no {name!r}.{suggestion(str(name), known)}")
        return cls(**given)

    def match(self, record: Record) -> bool:
        """Return whether `record` is one of them."""
        return (
            self.state in (None, record.state)
            and self.stale in (None, record.stale)
            and self.operation in (None, record.operation)
            and self.scope in (None, record.scope)
            and self.key in (None, record.key)
            and (self.created_before is None or record.created_at < self.created_before)
            and (self.created_after is None or record.created_at > self.created_after)
        )


@dataclass(frozen=True)
class Page:
    """Some records, and where the next ones begin."""

    records: tuple[Record, ...]
    #: Opaque: hand it to `browse` for the next page. None where there is none.
    cursor: str | None = None


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
    #: What derived keys are made of; never stored. None: the record id.
    seed: UUID | None = field(default=None, repr=False)
    #: Drawn once per attempt and sent with each resend of it.
    token: UUID = field(default_factory=keys.new_token, repr=False)
    lease: timedelta = timedelta(seconds=60)
    retention: timedelta = timedelta(hours=24)
    max_duration: timedelta = timedelta(hours=1)
    on_stale: str = "take_over"

    def __post_init__(self) -> None:
        """Raise TypeError for a duration that is none."""
        for name in ("lease", "retention", "max_duration"):
            object.__setattr__(self, name, as_duration(getattr(self, name)))

    @property
    def fingerprint(self) -> bytes | None:
        """The fingerprint that a won claim stores."""
        return self.fingerprints[0] if self.fingerprints else None

    @property
    def lifetime(self) -> timedelta:
        """How long the record lives from a won claim on, unless it is ended before."""
        return max(self.retention, self.max_duration + self.lease)


@dataclass(frozen=True)
class Proof:
    """The proof of ownership: each owner's write is conditional on all of it."""

    record_id: UUID
    epoch: int
    token: UUID = field(repr=False)


class Lease:
    """
    The right to run, limited in time: a handle over a frozen proof of ownership.

    Thread-safe: everything is fixed once it is won, but for what its end tells.
    """

    def __init__(
        self,
        proof: Proof,
        request: ClaimRequest,
        *,
        lease_until: datetime | None = None,
        claimed_at: datetime | None = None,
        takeover: bool = False,
        renewable: bool = True,
        seen: Record | None = None,
        written: bool = True,
    ) -> None:
        self.proof = proof
        self.request = request
        self.lease_until = lease_until
        self.claimed_at = claimed_at
        #: A lapsed lease of another attempt was taken over.
        self.takeover = takeover
        #: Whether the store can renew this lease from outside the work's transaction.
        self.renewable = renewable
        #: ``single``: the claimable record that the claim found, None if there was none.
        self.seen = seen
        #: ``single``: False while the store holds no row of this attempt (a late insert).
        self.written = written
        #: Makes a result the completion that `transact_item` gives; set by the attempt.
        self.completion: Callable[[Any], Any] | None = None
        #: The record, where `transact_item` had completed it with another result than the work's.
        self.completed_before: Record | None = None
        self._lost = False
        self._gone = False

    @property
    def record_id(self) -> UUID:
        """The primary key of the record in every store."""
        return self.proof.record_id

    @property
    def fencing_token(self) -> int:
        """The epoch: an integer that only grows per record id, safe to pass downstream."""
        return self.proof.epoch

    @property
    def token(self) -> UUID:
        """The random half of the proof, new for each claim."""
        return self.proof.token

    @property
    def seed(self) -> UUID:
        """What derived keys are made of: the record id and what is asked for."""
        return self.request.seed or self.record_id

    @property
    def lost(self) -> bool:
        """Whether a renewal was refused: nothing keeps another attempt from running by now."""
        return self._lost

    def check(self) -> None:
        """Raise LeaseLost once the lease is `lost`; its ``gone`` says how."""
        if self._lost:
            raise LeaseLost(gone=self._gone)

    def derive_key(self, name: str) -> str:
        """
        Return a stable key for a downstream call.

        It is equal over retries, take-overs and rotations of secrets, different per ``name`` and
        for each thing that is asked for under the caller's key, and never that key.
        """
        return str(keys.derive(self.seed, name))

    def transact_item(self, result: Any = None) -> Any:
        """
        Return the completion with `result`, as an item for the caller's own TransactWriteItems.

        On a DynamoDB store: the caller's items and the record then commit together, or not at all
        where the lease was lost. The work still returns the same result: if it returns another,
        the committed one is the answer, and a warning is logged. RuntimeError for a lease that no
        attempt holds, and on a store that has no such items.
        """
        if self.completion is None:
            raise RuntimeError("This lease belongs to no attempt whose result it could complete.")
        return self.completion(result)

    def mark_lost(self, *, gone: bool = False) -> None:
        """Note that a renewal was refused, because the record is `gone`; `check` raises now."""
        self._gone = gone
        self._lost = True

    def __repr__(self) -> str:
        return f"<Lease {keys.short(self.record_id)} epoch={self.fencing_token}>"


@dataclass(frozen=True)
class Outcome:
    """What became of one attempt."""

    #: The work's result, or the stored one.
    result: Any
    #: True if the result came from the record, not from what this call ran.
    replayed: bool
    record_id: UUID
    #: The epoch under which the result was produced.
    fencing_token: int
    #: When the record stops answering; None where nothing was kept.
    expires_at: datetime | None = None
    #: False if no later attempt can be answered with this result.
    stored: bool = True
