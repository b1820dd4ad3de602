"""
A base for stores whose operations each exclude all others.

This module implements the operations once, for every such store. A subclass says how an operation
excludes the others, and reads and writes whole records.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest, Decision, Resolution, decide
from django_idempotency.exceptions import LeaseLost
from django_idempotency.leases import Lease
from django_idempotency.records import Filters, Page, Record, State, as_duration
from django_idempotency.stores.base import BaseStore

__all__ = ["ExclusiveStore", "Records", "place"]

_PLACE = re.compile(r"[-0-9]{10} [:.0-9]{15} [-0-9a-f]{36}")


class Records(ABC):
    """All records, for as long as one operation has exclusive access."""

    #: The store's clock: one moment for the whole operation. Aware, and in UTC.
    now: datetime

    @abstractmethod
    def get(self, record_id: UUID) -> Record | None:
        """Return the record as it is at `now`, or None; raise StoreError for a damaged one."""

    @abstractmethod
    def put(self, record: Record) -> None:
        """Store the record, and replace the one with its id if there is one."""

    @abstractmethod
    def delete(self, record_id: UUID) -> None:
        """Delete the record with this id, if there is one."""

    @abstractmethod
    def newest_first(self, before: str | None) -> Iterator[Record]:
        """Yield the records by descending `place`; only those below `before`, unless it is None."""

    @abstractmethod
    def delete_expired(self, limit: int) -> int:
        """Delete at most `limit` records that are `Record.expired`; return how many they were."""


class ExclusiveStore(BaseStore):
    """A store whose operations exclude each other; subclasses say how."""

    supports_steps = True

    @abstractmethod
    def exclusively(self) -> AbstractContextManager[Records]:
        """
        Give one operation access to all records, and exclude every other one until it ends.

        The block's writes are kept when it ends, and undone if it ends with an exception.
        """

    def claim(self, request: ClaimRequest) -> Lease | Record:
        """See `BaseStore.claim`."""
        with self.exclusively() as records:
            now, seen = records.now, records.get(request.record_id)
            if seen is not None:
                if seen.token == request.token and seen.state is State.IN_PROGRESS:
                    return _lease(seen, request)
                if decide(seen, request) is not Decision.CLAIM_AGAIN:
                    return seen
            old = None if seen is None or seen.expired else seen
            kept = old.fingerprint if old else None
            record = Record(
                record_id=request.record_id,
                **request.named,
                fingerprint=request.fingerprint if kept is None else kept,
                state=State.IN_PROGRESS,
                epoch=max(int(now.timestamp() * 1_000_000), seen.epoch + 1 if seen else 0),
                token=request.token,
                lease_until=now + request.lease,
                created_at=old.created_at if old else now,
                updated_at=now,
                expires_at=_expiry(old, request, now),
                attempts=old.attempts + 1 if old else 1,
                result=None,
                error="",
                now=now,
                steps=old.steps if old else None,
            )
            records.put(record)
            takeover = old is not None and old.state is State.IN_PROGRESS
            return _lease(record, request, takeover=takeover)

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        """See `BaseStore.complete`."""
        retention = as_duration(retention)
        with self.exclusively() as records:
            if record := self.owned(records, lease):
                expires_at = records.now + retention
                _end(records, record, State.COMPLETED, result=result, expires_at=expires_at)
                return expires_at
            ended = records.get(lease.record_id)
            if ended is None:
                raise LeaseLost(gone=True)
            if ended.state is not State.COMPLETED or not _is_mine(ended, lease):
                raise LeaseLost
            if ended.expires_at is None:
                raise LeaseLost
            return ended.expires_at

    def fail(self, lease: Lease, error: str, *, held: bool = False) -> None:
        """See `BaseStore.fail`."""
        with self.exclusively() as records:
            if record := self.owned(records, lease):
                lasts = record.expires_at or records.now + lease.request.retention
                expires_at = None if held else lasts
                error = keys.bounded(error)
                _end(records, record, State.FAILED, error=error, expires_at=expires_at)

    def release(self, lease: Lease) -> None:
        """See `BaseStore.release`."""
        with self.exclusively() as records:
            if record := self.owned(records, lease):
                expires_at = record.expires_at or records.now + lease.request.retention
                _end(records, record, State.RELEASED, fingerprint=None, expires_at=expires_at)

    def note(self, lease: Lease, entry: bytes, *, duration: timedelta, held: bool) -> None:
        """See `BaseStore.note`."""
        duration = as_duration(duration)
        with self.exclusively() as records:
            record = self.owned(records, lease)
            if record is None:
                raise LeaseLost(gone=records.get(lease.record_id) is None)
            now, expires_at = records.now, record.expires_at
            lifetime = lease.request.noted_lifetime
            if held:
                expires_at = None
            elif expires_at is None or expires_at < now + lifetime / 2:
                expires_at = now + lifetime
            noted = (record.steps or b"") + entry
            lease_until = now + duration
            records.put(
                replace(record, steps=noted, lease_until=lease_until, expires_at=expires_at)
            )

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        """See `BaseStore.renew`."""
        duration = as_duration(duration)
        with self.exclusively() as records:
            held = {lease: self.owned(records, lease) for lease in leases}
            for record in filter(None, held.values()):
                records.put(replace(record, lease_until=records.now + duration))
            return {lease for lease, record in held.items() if record is not None}

    def get(self, record_id: UUID) -> Record | None:
        """See `BaseStore.get`."""
        with self.exclusively() as records:
            return records.get(record_id)

    def look_on(
        self, filters: Filters, cursor: str | None, limit: int, most: int, results: bool
    ) -> tuple[Page, int]:
        """See `BaseStore.look_on`; in the order of creation."""
        if filters.ids is not None:
            return self.look_up(filters, cursor, limit)
        if cursor is not None and not _PLACE.fullmatch(cursor):
            raise ValueError("This store did not make this cursor.")
        found: list[Record] = []
        looked = 0
        with self.exclusively() as records:
            for record in records.newest_first(cursor):
                if looked == most or len(found) == limit:
                    return Page(tuple(found), cursor), looked
                looked, cursor = looked + 1, place(record)
                if filters.match(record):
                    found.append(record)
        return Page(tuple(found)), looked

    def resolve(self, record_id: UUID, resolution: Resolution) -> bool:
        """See `BaseStore.resolve`."""
        with self.exclusively() as records:
            now, seen = records.now, records.get(record_id)
            action, retention = resolution.action, resolution.retention
            if seen is None or seen.expired:
                return False
            if (seen.epoch, seen.state) != (resolution.epoch, resolution.state):
                return False
            if seen.live and not resolution.force:
                return False
            if not resolution.saw(seen.steps):
                return False
            if action != "expire" and seen.state not in (State.IN_PROGRESS, State.FAILED):
                return False
            new = {"epoch": seen.epoch + 1, "token": keys.new_token(), "steps": None}
            if action == "complete":
                new |= {"result": resolution.result, "error": "", "expires_at": now + retention}
                _end(records, seen, State.COMPLETED, **new)
            elif action == "resume":
                lasts = None if resolution.holds(seen.steps) else now + retention
                if seen.steps is not None:
                    new["steps"] = seen.steps + resolution.entry
                _end(records, seen, State.FAILED, expires_at=lasts, **new)
            elif action == "release" or seen.state is State.IN_PROGRESS:
                lasts = now if action == "expire" else seen.expires_at or now + retention
                _end(records, seen, State.RELEASED, fingerprint=None, expires_at=lasts, **new)
            else:
                _end(records, seen, seen.state, expires_at=now, **new)
            return True

    def erase(self, record_id: UUID, *, force: bool = False) -> bool:
        """See `BaseStore.erase`."""
        with self.exclusively() as records:
            seen = records.get(record_id)
            if seen is not None and seen.live and not force:
                return False
            records.delete(record_id)
            return True

    def sweep(self, *, limit: int = 5000) -> int:
        """See `BaseStore.sweep`."""
        with self.exclusively() as records:
            return records.delete_expired(limit)

    def count_expired(self, *, limit: int | None = None) -> int:
        """See `BaseStore.count_expired`; looks at each record."""
        with self.exclusively() as records:
            return sum(record.expired for record in records.newest_first(None))

    def owned(self, records: Records, lease: Lease) -> Record | None:
        """Return the record that this lease may end; None if the lease was lost."""
        record = records.get(lease.record_id)
        if record and record.state is State.IN_PROGRESS and _is_mine(record, lease):
            return record
        return None


def place(record: Record) -> str:
    """Return the place of the record in the order of creation, as text that sorts likewise."""
    return f"{record.created_at:%Y-%m-%d %H:%M:%S.%f} {record.record_id}"


def _expiry(old: Record | None, request: ClaimRequest, now: datetime) -> datetime | None:
    """Return when a claimed record expires; a claim does not end a hold (S13)."""
    is_held = old is not None and old.steps is not None and old.held
    return None if is_held or request.on_stale == "refuse" else now + request.lifetime


def _is_mine(record: Record, lease: Lease) -> bool:
    return (record.epoch, record.token) == (lease.fencing_token, lease.token)


def _lease(record: Record, request: ClaimRequest, *, takeover: bool = False) -> Lease:
    return Lease(
        request,
        record.epoch,
        lease_until=record.lease_until,
        claimed_at=record.now,
        takeover=takeover,
        journal=record.steps,
    )


def _end(records: Records, record: Record, state: State, **changes: Any) -> None:
    steps = record.steps if state is State.FAILED else None
    ended = replace(record, state=state, lease_until=None, updated_at=records.now, steps=steps)
    records.put(replace(ended, **changes))
