"""Requests, operations and records that the tests of the DynamoDB store begin with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.claims import (
    FINGERPRINT,
    OTHER_FINGERPRINT,
    asked,
    found,
    lost,
    operation,
    record_id,
    won,
)

__all__ = [
    "DAY",
    "FINGERPRINT",
    "HOUR",
    "OTHERS",
    "OTHER_FINGERPRINT",
    "asked",
    "found",
    "lost",
    "once",
    "operation",
    "record_id",
    "won",
]

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
#: A request under another fingerprint.
OTHERS = asked(fingerprints=(OTHER_FINGERPRINT,))


def once(store: DynamoDBStore, method: str, meanwhile: Callable[[], object]) -> None:
    """Let `meanwhile` happen before the next call of a method of the store's table, once."""
    original = getattr(store.table, method)

    def called(*args: Any, **kwargs: Any) -> Any:
        delattr(store.table, method)
        meanwhile()
        return original(*args, **kwargs)

    setattr(store.table, method, called)
