"""Rows and parameters of the database store's statements, as this package's own types."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease, Proof
from django_idempotency.observers import logger
from django_idempotency.records import Filters, Page, Record, State
from django_idempotency.stores.database.places import place_of

__all__ = [
    "claim_parameters",
    "is_takeover",
    "lease_of_resent",
    "page_of",
    "page_parameters",
    "proof_parameters",
    "record_of",
    "request_parameters",
    "seen_parameters",
    "session_of",
    "utc",
    "uuid_of",
]

#: Columns of LOOK and BROWSE.
_ID, _EXPIRES_AT = 0, 11
_STATES = {state.value: state for state in State}


def record_of(columns: Collection[Any], place: str | None = None) -> tuple[Record | None, datetime]:
    """Return the record of a look, which was made at `place`, and the store's clock."""
    record_id, scope, key, operation, fingerprint, state, epoch, token, *times_on = columns
    lease_until, created, updated, expires, attempts, result, error, clock = times_on
    try:
        if type(clock) is str or clock.tzinfo is None:  # what a cursor gives
            clock = utc(clock)
            if record_id is not None:
                record_id, token = uuid_of(record_id), uuid_of(token)
                fingerprint, result = _bytes(fingerprint), _bytes(result)
                created, updated = utc(created), utc(updated)
                lease_until = None if lease_until is None else utc(lease_until)
                expires = None if expires is None else utc(expires)
        if record_id is None:
            return None, clock
        record = Record(
            record_id=record_id,
            scope=scope,
            key=key,
            operation=operation,
            fingerprint=fingerprint,
            state=_STATES[state],
            epoch=epoch,
            token=token,
            lease_until=lease_until,
            created_at=created,
            updated_at=updated,
            expires_at=expires,
            attempts=attempts,
            result=result,
            error=error,
            now=clock,
            place=place,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError("The stored record is damaged: a column holds what it cannot.") from error
    return record, clock


def _bytes(value: Any) -> bytes | None:
    """Return what a driver gives for bytes; TypeError for a number: bytes() makes zeros of it."""
    return None if value is None else bytes(memoryview(value))


def lease_of_resent(request: ClaimRequest, record: Record) -> Lease:
    """Return the lease of a claim that had already been won under its token."""
    return Lease(
        Proof(record.record_id, record.epoch, record.token),
        request,
        lease_until=record.lease_until,
        claimed_at=record.updated_at,
        renewable=request.transaction == "separate",
        place=record.place,
    )


def is_takeover(seen: Record | None) -> bool:
    return seen is not None and seen.state is State.IN_PROGRESS and not seen.expired


def request_parameters(request: ClaimRequest) -> dict[str, Any]:
    return {
        "id": request.record_id,
        "scope": request.scope,
        "key": request.key,
        "operation": request.operation,
        "fingerprints": list(request.fingerprints),
        "token": request.token,
    }


def claim_parameters(request: ClaimRequest) -> dict[str, Any]:
    return {
        **request_parameters(request),
        "fingerprint": request.fingerprint,
        "lease": request.lease,
        "lifetime": None if request.on_stale == "refuse" else request.lifetime,
        "take_over": request.on_stale == "take_over",
    }


def seen_parameters(seen: Record) -> dict[str, Any]:
    return {"seen_epoch": seen.epoch, "seen_token": seen.token, "seen_state": seen.state.value}


def proof_parameters(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.record_id,
        "epoch": lease.fencing_token,
        "token": lease.token,
        "session": session_of(lease),
    }


def session_of(lease: Lease) -> str | None:
    """Return the session of the claim, in which its owner writes; see `Place`."""
    return None if lease.place is None else place_of(lease.place).session


def page_parameters(filters: Filters, cursor: str | None) -> dict[str, Any]:
    """Return what BROWSE takes; raise ValueError for a cursor that `page_of` did not make."""
    after = after_id = None
    if cursor is not None:
        try:
            after, after_id = json.loads(cursor)
            after = None if after is None else utc(datetime.fromisoformat(after))
            after_id = UUID(after_id)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError("The database store did not make this cursor.") from error
    return {
        "state": None if filters.state is None else filters.state.value,
        "stale": filters.stale,
        "operation": filters.operation,
        "scope": filters.scope,
        "key": filters.key,
        "created_before": filters.created_before,
        "created_after": filters.created_after,
        "after": after,
        "after_id": after_id,
    }


def page_of(rows: list[tuple[Any, ...]], limit: int) -> Page:
    """Return the page that BROWSE found, asked for one row more than `limit`."""
    damaged: list[str] = []
    records = tuple(record for row in rows[:limit] if (record := _readable(row, damaged)))
    if len(rows) <= limit:
        return Page(records, None, tuple(damaged))
    record_id, expires_at = (rows[limit - 1][column] for column in (_ID, _EXPIRES_AT))
    after = None if expires_at is None else utc(expires_at).replace(tzinfo=None).isoformat()
    return Page(records, json.dumps([after, str(uuid_of(record_id))]), tuple(damaged))


def _readable(row: tuple[Any, ...], damaged: list[str]) -> Record | None:
    """Return the row's record; None for a damaged one, which is logged and noted in `damaged`."""
    try:
        return record_of(row)[0]
    except StoreError as error:
        # Without a traceback: it would go on to quote what is in the record (R79).
        damaged.append(keys.short(uuid_of(row[_ID])))
        logger.error("Record %s cannot be shown. %s", damaged[-1], error)
        return None


def utc(value: datetime | str) -> datetime:
    """Return a time of the store as an aware one."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value


def uuid_of(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)
