"""A record as text, for stores that keep only text."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from django_idempotency.exceptions import StoreError
from django_idempotency.records import Record, State

__all__ = ["dump", "load"]

_READERS: dict[str, Callable[[Any], Any]] = {
    "record_id": UUID,
    "scope": str,
    "key": str,
    "operation": str,
    "fingerprint": bytes.fromhex,
    "state": State,
    "epoch": int,
    "token": UUID,
    "lease_until": datetime.fromisoformat,
    "created_at": datetime.fromisoformat,
    "updated_at": datetime.fromisoformat,
    "expires_at": datetime.fromisoformat,
    "attempts": int,
    "result": bytes.fromhex,
    "error": str,
}
_OPTIONAL = {"fingerprint", "lease_until", "expires_at", "result"}


def dump(record: Record) -> str:
    """Return the record as JSON, without the moment at which it was read."""
    return json.dumps({name: getattr(record, name) for name in _READERS}, default=_text_of)


def load(text: str, *, now: datetime) -> Record:
    """Return the record of a text of `dump`, as it is at `now`; raise StoreError for others."""
    try:
        kept = json.loads(text)
        values: dict[str, Any] = {
            name: None if kept[name] is None and name in _OPTIONAL else reader(kept[name])
            for name, reader in _READERS.items()
        }
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise StoreError("The record is damaged.") from error
    return Record(**values, now=now)


def _text_of(value: UUID | datetime | bytes) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
