"""Records in this process's memory: for tests and for tools that are a single process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from uuid import UUID

from django_idempotency.engine import Decision, decide
from django_idempotency.exceptions import LeaseLost
from django_idempotency.records import ClaimRequest, Lease, Proof, Record, State
from django_idempotency.stores.base import BaseStore

__all__ = ["MemoryStore"]


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


class MemoryStore(BaseStore):
    """
    A dict behind a mutex, with the host's clock.

    Nothing is shared between processes and nothing outlives this one.
    """

    def __init__(self, *, clock: Callable[[], datetime] = _utc_now) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._records: dict[UUID, Record] = {}

    def claim(self, request: ClaimRequest) -> Lease | Record:
        with self._mutex:
            now = self._clock()
            seen = self._look(request.record_id, now)
            if seen is not None:
                if seen.token == request.token and seen.state is State.IN_PROGRESS:
                    return _lease(seen, request)
                if decide(seen, request) is not Decision.CLAIM_AGAIN:
                    return seen
            takeover = seen is not None and seen.state is State.IN_PROGRESS and not seen.expired
            again = seen is not None and not seen.expired
            record = Record(
                record_id=request.record_id,
                scope=request.scope,
                key=request.key,
                operation=request.operation,
                fingerprint=(
                    seen.fingerprint
                    if seen is not None and again and seen.fingerprint is not None
                    else request.fingerprint
                ),
                state=State.IN_PROGRESS,
                epoch=max(int(now.timestamp() * 1_000_000), seen.epoch + 1 if seen else 0),
                token=request.token,
                lease_until=now + request.lease,
                created_at=seen.created_at if seen and again else now,
                updated_at=now,
                expires_at=None if request.on_stale == "refuse" else now + request.lifetime,
                attempts=seen.attempts + 1 if seen and again else 1,
                result=None,
                error="",
                now=now,
            )
            self._records[request.record_id] = record
            return _lease(record, request, takeover=takeover)

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        with self._mutex:
            now = self._clock()
            record = self._owned(lease, now)
            if record is not None:
                expires_at = now + retention
                self._end(record, State.COMPLETED, now, result=result, expires_at=expires_at)
                return expires_at
            record = self._look(lease.record_id, now)
            if record is None or record.expires_at is None:
                raise LeaseLost
            if record.state is not State.COMPLETED or not _is_mine(record, lease):
                raise LeaseLost
            return record.expires_at

    def fail(self, lease: Lease, error: str) -> None:
        with self._mutex:
            now = self._clock()
            if record := self._owned(lease, now):
                expires_at = record.expires_at or now + lease.request.retention
                self._end(record, State.FAILED, now, error=error, expires_at=expires_at)

    def release(self, lease: Lease) -> None:
        with self._mutex:
            now = self._clock()
            if record := self._owned(lease, now):
                expires_at = record.expires_at or now + lease.request.retention
                self._end(record, State.RELEASED, now, fingerprint=None, expires_at=expires_at)

    def renew(self, leases: Collection[Lease], duration: timedelta) -> set[Lease]:
        with self._mutex:
            now = self._clock()
            held = {lease for lease in leases if self._owned(lease, now)}
            for lease in held:
                record = self._records[lease.record_id]
                self._records[lease.record_id] = replace(record, lease_until=now + duration)
            return held

    def get(self, record_id: UUID) -> Record | None:
        with self._mutex:
            return self._look(record_id, self._clock())

    def sweep(self, *, limit: int = 5000) -> int:
        with self._mutex:
            now = self._clock()
            expired = [
                record_id
                for record_id, record in self._records.items()
                if replace(record, now=now).expired
            ][:limit]
            for record_id in expired:
                del self._records[record_id]
            return len(expired)

    def _look(self, record_id: UUID, now: datetime) -> Record | None:
        record = self._records.get(record_id)
        return None if record is None else replace(record, now=now)

    def _owned(self, lease: Lease, now: datetime) -> Record | None:
        record = self._look(lease.record_id, now)
        if record and record.state is State.IN_PROGRESS and _is_mine(record, lease):
            return record
        return None

    def _end(self, record: Record, state: State, now: datetime, **changes: object) -> None:
        self._records[record.record_id] = replace(
            record,
            state=state,
            lease_until=None,
            updated_at=now,
            **changes,  # type: ignore[arg-type]
        )


def _is_mine(record: Record, lease: Lease) -> bool:
    return (record.epoch, record.token) == (lease.fencing_token, lease.token)


def _lease(record: Record, request: ClaimRequest, *, takeover: bool = False) -> Lease:
    return Lease(
        Proof(record.record_id, record.epoch, record.token),
        request,
        lease_until=record.lease_until,
        claimed_at=record.now,
        takeover=takeover,
    )
