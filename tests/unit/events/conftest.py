"""A memory store with a clock, for all messages whose work needs no transaction."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.conf import store_for
from django_idempotency.testing import FakeClock

MEMORY = "django_idempotency.stores.memory.MemoryStore"


@pytest.fixture
def memory(settings: Any) -> Any:
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY, "OPTIONS": {"clock": FakeClock()}}}
    return store_for()
