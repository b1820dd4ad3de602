"""Rows and parameters of the database store's statements, as this package's own types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

from django_idempotency.claims import ClaimRequest
from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.records import KEPT, Record, State
from django_idempotency.stores.database.places import place_of

#: The columns of the table, in the order in which statements read them.
COLUMNS = ("id", *KEPT)
TIMES = ("lease_until", "created_at", "updated_at", "expires_at")
_BYTES = ("fingerprint", "result", "steps")

_STATES = {state.value: state for state in State}


def record_of(columns: Sequence[Any], place: str | None = None) -> tuple[Record | None, datetime]:
    """Return the record of a look, which was made at `place`, and the store's clock."""
    record_id, *values, clock = columns
    kept = dict(zip(KEPT, values, strict=True))
    try:
        if type(clock) is str or clock.tzinfo is None:  # what a cursor gives
            clock = utc(clock)
            if record_id is not None:
                record_id, kept["token"] = uuid_of(record_id), uuid_of(kept["token"])
                for name in _BYTES:
                    if kept[name] is not None:
                        # Of a number bytes() would make zeros; this is a TypeError.
                        kept[name] = bytes(memoryview(kept[name]))
                for name in TIMES:
                    if kept[name] is not None:
                        kept[name] = utc(kept[name])
        if record_id is None:
            return None, clock
        kept["state"] = _STATES[kept["state"]]
        record = Record(record_id, **kept, now=clock, place=place)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError("The stored record is damaged: a column holds what it cannot.") from error
    return record, clock


def is_takeover(seen: Record | None) -> bool:
    return seen is not None and seen.state is State.IN_PROGRESS and not seen.expired


def claim_parameters(request: ClaimRequest) -> dict[str, Any]:
    return {
        "id": request.record_id,
        **request.named,
        "fingerprints": list(request.fingerprints),
        "fingerprint": request.fingerprint,
        "token": request.token,
        "lease": request.lease,
        "lifetime": None if request.on_stale == "refuse" else request.lifetime,
        "take_over": request.on_stale == "take_over",
        "resumes": request.steps,
    }


def seen_parameters(seen: Record) -> dict[str, Any]:
    return {"seen_epoch": seen.epoch, "seen_token": seen.token, "seen_state": seen.state.value}


def proof_parameters(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.record_id,
        "epoch": lease.fencing_token,
        "token": lease.token,
        # That of the claim, in which its owner writes; see `Place`.
        "session": None if lease.place is None else place_of(lease.place).session,
    }


def utc(value: datetime | str) -> datetime:
    """Return a time of the store as an aware one."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value


def uuid_of(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)
