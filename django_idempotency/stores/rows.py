"""Rows and parameters of the database store's statements, as this package's own types."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from django_idempotency.records import ClaimRequest, Lease, Proof, Record, State

__all__ = [
    "claim_parameters",
    "for_sqlite",
    "in_flight",
    "is_takeover",
    "lease_of_resent",
    "proof_parameters",
    "record_of",
    "seen_parameters",
    "utc",
    "uuid_of",
]


def record_of(columns: Collection[Any]) -> tuple[Record | None, datetime]:
    """Return the record of a LOOK, and the store's clock."""
    record_id, scope, key, operation, fingerprint, state, epoch, token, *times_on = columns
    lease_until, created, updated, expires, attempts, result, error, clock = times_on
    now = utc(clock)
    if record_id is None:
        return None, now
    record = Record(
        record_id=uuid_of(record_id),
        scope=scope,
        key=key,
        operation=operation,
        fingerprint=None if fingerprint is None else bytes(fingerprint),
        state=State(state),
        epoch=epoch,
        token=uuid_of(token),
        lease_until=None if lease_until is None else utc(lease_until),
        created_at=utc(created),
        updated_at=utc(updated),
        expires_at=None if expires is None else utc(expires),
        attempts=attempts,
        result=None if result is None else bytes(result),
        error=error,
        now=now,
    )
    return record, now


def in_flight(request: ClaimRequest, now: datetime) -> Record:
    """Return what is known of an attempt that holds the lock and has written nothing yet."""
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


def lease_of_resent(request: ClaimRequest, record: Record) -> Lease:
    """Return the lease of a claim that had already been won under its token."""
    return Lease(
        Proof(record.record_id, record.epoch, record.token),
        request,
        lease_until=record.lease_until,
        claimed_at=record.updated_at,
        renewable=request.transaction == "separate",
    )


def is_takeover(seen: Record | None) -> bool:
    return seen is not None and seen.state is State.IN_PROGRESS and not seen.expired


def claim_parameters(request: ClaimRequest) -> dict[str, Any]:
    return {
        "id": request.record_id,
        "scope": request.scope,
        "key": request.key,
        "operation": request.operation,
        "fingerprint": request.fingerprint,
        "fingerprints": list(request.fingerprints),
        "token": request.token,
        "lease": request.lease,
        "lifetime": None if request.on_stale == "refuse" else request.lifetime,
        "take_over": request.on_stale == "take_over",
    }


def seen_parameters(seen: Record) -> dict[str, Any]:
    return {"seen_epoch": seen.epoch, "seen_token": seen.token, "seen_state": seen.state.value}


def proof_parameters(lease: Lease) -> dict[str, Any]:
    return {"id": lease.record_id, "epoch": lease.fencing_token, "token": lease.token}


def for_sqlite(value: Any) -> Any:
    """Return `value` as the SQLite statements take it."""
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, timedelta):
        return f"{value.total_seconds():+.6f} seconds"
    if isinstance(value, list):
        return json.dumps([fingerprint.hex().upper() for fingerprint in value])
    return value


def utc(value: datetime | str) -> datetime:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.replace(tzinfo=timezone.utc)


def uuid_of(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)
