"""Requests, operations and records that the tests of the Redis store begin with."""

from __future__ import annotations

import time
from datetime import timedelta

from django_idempotency.stores.redis import RedisStore
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
    "MOMENT",
    "OTHER_FINGERPRINT",
    "asked",
    "found",
    "lapse",
    "lost",
    "operation",
    "record_id",
    "won",
]

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
#: A lease that lapses soon.
MOMENT = timedelta(milliseconds=30)


def lapse(store: RedisStore, key: str = "key") -> None:
    """Wait until the lease on `key` has lapsed by the server's clock."""
    deadline = time.monotonic() + 5
    while (record := store.get(record_id(key))) is not None and not record.stale:
        assert time.monotonic() < deadline, record
        time.sleep(0.005)
