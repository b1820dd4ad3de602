"""The contract on the memory store, with a clock that is moved and with the host's."""

from __future__ import annotations

from datetime import timedelta

from django_idempotency.testing import FakeClock, StoreContract

MEMORY = "django_idempotency.stores.memory.MemoryStore"


class TestMemoryStore(StoreContract):
    backend = MEMORY
    options = {"clock": FakeClock()}
    shared = False


class TestMemoryStoreWithTheHostsClock(StoreContract):
    backend = MEMORY
    shared = False
    moment = timedelta(milliseconds=10)
