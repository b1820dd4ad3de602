"""The contract on the memory store, with a clock that is moved and with the host's."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock, StoreContract
from django_idempotency.testing.contract_expiry import ExpiryRules

MEMORY = "django_idempotency.stores.memory.MemoryStore"


class TestMemoryStore(StoreContract):
    backend = MEMORY
    options = {"clock": FakeClock()}
    shared = False

    def forget(self, store: BaseStore, record_id: UUID) -> None:
        assert isinstance(store, MemoryStore)
        del store._records[record_id]


class TestMemoryStoreWithTheHostsClock(ExpiryRules):
    """Where the clock is waited for, and not moved."""

    backend = MEMORY
    shared = False
    moment = timedelta(milliseconds=10)
