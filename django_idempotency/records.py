"""Records: the stored state of one (scope, key), and the pages in which a store is browsed."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, get_args, get_type_hints
from uuid import UUID

from django_idempotency import keys
from django_idempotency.exceptions.base import StoreError
from django_idempotency.policy import duration_of, suggestion

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # An Outcome without a type is one of Any, as it was before it had one.
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

__all__ = ["KEPT", "NAMED", "Filters", "Outcome", "Page", "Record", "State", "as_duration"]


def as_duration(value: timedelta | float) -> timedelta:
    """Return a timedelta, or a number of seconds, as a timedelta; raise TypeError for others."""
    if type(value) is timedelta:
        return value
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

    All times are aware and in UTC. ``fingerprint`` is None if it is forgotten (RELEASED) or unknown
    (an attempt that has not written its row yet). ``lease_until`` is None if no lease is held or
    its end is unknown.
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
    #: The journal of its steps, None without any; see `journal`.
    steps: bytes | None = field(default=None, repr=False)
    #: Where a claim has met it, in a store with several places; see `BaseStore.at`.
    place: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raise StoreError for a value of another type: a stored record is not trusted (R95)."""
        if self.fingerprint == b"":
            short = keys.short(self.record_id)
            raise StoreError(f"The stored record {short} is damaged: its fingerprint is empty.")
        types = tuple(map(type, self.__dict__.values()))
        if types not in _right_types:
            self._check_types()
            _right_types.add(types)
        for time in (self.created_at, self.updated_at, self.now, self.expires_at, self.lease_until):
            if time is not None and time.tzinfo is None:
                self._check_types()

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
        """Whether the record has expired: ``expires_at <= now``, and no live lease."""
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
        Seconds since the attempt that holds the record began; None if `lease_left` is None.

        By the store's clock. A claim and a take-over write ``updated_at``, a renewal does not.
        """
        if self.lease_left is None:
            return None
        return max((self.now - self.updated_at).total_seconds(), 0)

    @property
    def stale(self) -> bool:
        """Whether the record is in progress under a lapsed lease."""
        return self.state is State.IN_PROGRESS and not self.live

    @property
    def held(self) -> bool:
        """
        Whether the record does not expire.

        It has a call that may have been made or not, or it waits for an operator if its lease
        lapses (``on_stale="refuse"``).
        """
        return self.expires_at is None


#: The combinations of field types that were checked and are right; there are few.
_right_types: set[tuple[type, ...]] = set()

#: What a store keeps of a record besides its id: its columns.
KEPT = tuple(item.name for item in fields(Record) if item.name not in ("record_id", "now", "place"))
#: Those that are a claim's own texts: fields of ClaimRequest, too, and kept as it gives them.
NAMED = ("scope", "key", "operation")

#: The types that each field of a record may have.
_KINDS: dict[str, tuple[type, ...]] = {
    name: get_args(kind) or (kind,) for name, kind in get_type_hints(Record).items()
}


#: How a record id begins.
_DIGITS = re.compile(r"[0-9a-f]{8,32}")


@dataclass(frozen=True)
class Filters:
    """Which records to browse: those that match every field that is not None."""

    state: State | None = None
    #: Whether the record is in progress under a lapsed lease.
    stale: bool | None = None
    #: Whether the record does not expire: see `Record.held`.
    held: bool | None = None
    operation: str | None = None
    #: A scope, or several of which a record has one.
    scope: str | Collection[str] | None = None
    #: With `scope` it gives the record ids; alone, the store reads records until it finds matches.
    key: str | None = None
    #: The record id, or how it begins: 8 of its hexadecimal digits, or more.
    record_id: UUID | str | None = None
    created_before: datetime | None = None
    created_after: datetime | None = None

    def __post_init__(self) -> None:
        """Accept the name of a state; raise ValueError for an unknown one, and for no record id."""
        if self.state is not None:
            object.__setattr__(self, "state", State(self.state))
        if self.digits is not None and not _DIGITS.fullmatch(self.digits):
            raise ValueError(f"No record id begins with {self.record_id!r}.")

    @cached_property
    def digits(self) -> str | None:
        """The digits with which the record id begins."""
        return None if self.record_id is None else str(self.record_id).replace("-", "").lower()

    @cached_property
    def scopes(self) -> frozenset[str] | None:
        """The scopes of which a record has one."""
        if self.scope is None:
            return None
        return frozenset([self.scope] if isinstance(self.scope, str) else self.scope)

    @cached_property
    def ids(self) -> frozenset[UUID] | None:
        """The ids that only can match: a whole one, or those of scope and key; else None."""
        if self.digits is not None and len(self.digits) == 32:
            return frozenset([UUID(self.digits)])
        if self.scopes is None or self.key is None:
            return None
        return frozenset(it for scope in self.scopes for it in keys.record_ids(scope, self.key))

    @classmethod
    def of(cls, given: Filters | Mapping[str, Any] | None) -> Filters:
        """Return the filters that `browse` was given, as Filters; raise TypeError, ValueError."""
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
        """Return whether `record` matches."""
        return (
            self.state in (None, record.state)
            and self.stale in (None, record.stale)
            and self.held in (None, record.held)
            and self.operation in (None, record.operation)
            and self._names(record)
            and (self.created_before is None or record.created_at < self.created_before)
            and (self.created_after is None or record.created_at > self.created_after)
        )

    def _names(self, record: Record) -> bool:
        if self.ids is not None:  # a long scope is stored cut short
            return record.record_id in self.ids
        return (
            (self.digits is None or record.record_id.hex.startswith(self.digits))
            and (self.scopes is None or record.scope in self.scopes)
            and self.key in (None, record.key)
        )


@dataclass(frozen=True)
class Page:
    """A page of records, and the cursor of the next page."""

    records: tuple[Record, ...]
    #: Opaque: pass it to `browse` for the next page. None on the last page.
    cursor: str | None = None
    #: The short ids of damaged records on the page, which match no filter and cannot be read.
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome(Generic[T_co]):
    """The outcome of one attempt."""

    #: The work's result, or the stored result.
    result: T_co
    #: True if the result came from the record, not from this call's work.
    replayed: bool
    record_id: UUID
    #: The epoch under which the result was produced.
    fencing_token: int
    #: When the record expires; None if nothing was kept.
    expires_at: datetime | None = None
    #: False if no later attempt can get this result.
    stored: bool = True
