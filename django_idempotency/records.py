"""What a store keeps of one (scope, key), and what it answers when it is browsed."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.exceptions.base import StoreError
from django_idempotency.policy import duration_of, suggestion

__all__ = ["Filters", "Outcome", "Page", "Record", "State", "as_duration"]

#: Names that could be imported from here, too, and their modules.
_MOVED = {"ClaimRequest": "claims", "Lease": "leases", "Proof": "leases"}


def __getattr__(name: str) -> Any:
    """Give what users of the documented path import; those modules import this one."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"django_idempotency.{_MOVED[name]}"), name)


def as_duration(value: timedelta | float) -> timedelta:
    """Return a timedelta, or a number of seconds, as a timedelta; raise TypeError for others."""
    duration = value if type(value) is timedelta else duration_of(value)
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
        types = tuple(map(type, vars(self).values()))
        if types not in _right_types or not self._is_aware():
            self._check_types()
            _right_types.add(types)

    def _is_aware(self) -> bool:
        """Whether each time has a zone."""
        times = (self.created_at, self.updated_at, self.now, self.expires_at, self.lease_until)
        return None not in [time.tzinfo for time in times if time is not None]

    def _check_types(self) -> None:
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


#: The types of the fields of a record that was checked: there are few of these.
_right_types: set[tuple[type, ...]] = set()

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
