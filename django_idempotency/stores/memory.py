"""Records in this process's memory: for tests, and for tools of a single process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import ClassVar
from uuid import UUID

from django_idempotency.records import Record
from django_idempotency.stores.exclusive import ExclusiveStore, Records, place
from django_idempotency.stores.forks import in_each_child
from django_idempotency.stores.options import clock_of

__all__ = ["MemoryStore"]


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


class MemoryRecords(Records):
    """A dict, while its mutex is held."""

    def __init__(self, kept: dict[UUID, Record], now: datetime) -> None:
        self.kept = kept
        self.now = now

    def get(self, record_id: UUID) -> Record | None:
        record = self.kept.get(record_id)
        return None if record is None else replace(record, now=self.now)

    def put(self, record: Record) -> None:
        self.kept[record.record_id] = record

    def delete(self, record_id: UUID) -> None:
        self.kept.pop(record_id, None)

    def newest_first(self, before: str | None) -> Iterator[Record]:
        for where, record in sorted(((place(x), x) for x in self.kept.values()), reverse=True):
            if before is None or where < before:
                yield replace(record, now=self.now)

    def delete_expired(self, limit: int) -> int:
        now = self.now
        expired = [x for x, record in self.kept.items() if replace(record, now=now).expired][:limit]
        for record_id in expired:
            del self.kept[record_id]
        return len(expired)


class MemoryStore(ExclusiveStore):
    """
    A dict behind a mutex, with the host's clock.

    Each process has its own records, and they end with the process.
    """

    records_class: ClassVar[type[MemoryRecords]] = MemoryRecords

    def __init__(self, *, clock: Callable[[], datetime] = _utc_now) -> None:
        self._clock = clock_of(clock)
        self._records: dict[UUID, Record] = {}
        self.forked()
        in_each_child(self.forked)

    def forked(self) -> None:
        """Take a mutex of this child's own: a thread of the parent may have held the other."""
        self._mutex = threading.Lock()

    @contextmanager
    def exclusively(self) -> Iterator[Records]:
        """See `ExclusiveStore.exclusively`."""
        with self._mutex:
            yield self.records_class(self._records, self._clock())
