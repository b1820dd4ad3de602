"""What the mutants are made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django_idempotency.engine import Decision, decide
from django_idempotency.exceptions import StoreError
from django_idempotency.records import ClaimRequest, Lease, Proof, Record
from django_idempotency.stores.base import in_flight
from django_idempotency.stores.memory import MemoryRecords, MemoryStore

__all__ = ["GAP", "AbsentRecords", "Mutant", "SoundStore", "in_flight"]

#: Seconds between two steps that belong together: enough for another thread to come in between.
GAP = 0.002


class AbsentRecords(MemoryRecords):
    """Records of which a damaged one is not there."""

    def get(self, record_id: UUID) -> Record | None:
        try:
            return super().get(record_id)
        except StoreError:
            return None


class SoundStore(MemoryStore):
    """
    A store without a defect: the memory store, which moreover can lose answers.

    It has moments before its writes, and somebody who damages and deletes records.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        #: Whether the next write is done, and its answer lost.
        self.losing = False
        #: What happens before the next write.
        self.callback: Callable[[], object] | None = None

    def between(self) -> None:
        """Between a read and the write that it decides: let others do what they will."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()

    def _write(self, write: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        self.between()
        try:
            return write(*arguments, **more)
        finally:
            if self.losing:
                self.losing = False
                raise StoreError("The answer is lost.")

    def claim(self, request: ClaimRequest) -> Lease | Record:
        return self._write(super().claim, request)

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        return self._write(super().complete, lease, result, retention=retention)

    def fail(self, lease: Lease, error: str) -> None:
        self._write(super().fail, lease, error)

    def release(self, lease: Lease) -> None:
        self._write(super().release, lease)

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        return self._write(super().renew, leases, duration)

    def resolve(self, record_id: UUID, action: str, **more: Any) -> bool:
        return self._write(super().resolve, record_id, action, **more)

    def sweep(self, *, limit: int = 5000) -> int:
        return self._write(super().sweep, limit=limit)

    def damage(self, record_id: UUID) -> None:
        """Leave a record whose state is none."""
        with self._mutex:
            damaged = copy(self._records[record_id])
            object.__setattr__(damaged, "state", "NO STATE")  # which no Record lets in
            self._records[record_id] = damaged

    def forget(self, record_id: UUID) -> None:
        """Delete a record behind everybody's back."""
        with self._mutex:
            del self._records[record_id]

    def change(self, record_id: UUID, **changes: Any) -> None:
        """Change a record behind everybody's back."""
        with self._mutex:
            self._records[record_id] = replace(self._records[record_id], **changes)


class Mutant(SoundStore):
    """A store that breaks one rule; the first line of its docstring says which."""

    #: The rule that is meant to notice.
    rule: ClassVar[str] = ""
    #: Attributes that the contract has for it.
    contract: ClassVar[dict[str, Any]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.busy = threading.Lock()

    def is_won(self, seen: Record | None, request: ClaimRequest) -> bool:
        """Whether a claim that saw this record is to be won."""
        return seen is None or decide(seen, request) is Decision.CLAIM_AGAIN

    def owners(self, lease: Lease) -> Lease:
        """Return the lease of whoever is the owner by now."""
        record = self.get(lease.record_id)
        if record is None:
            return lease
        return Lease(Proof(record.record_id, record.epoch, record.token), lease.request)
