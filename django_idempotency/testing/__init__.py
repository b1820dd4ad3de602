"""For tests: of stores, of APIs with idempotency keys, and of projects that use this package."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_idempotency.testing.asserts import assert_idempotent
    from django_idempotency.testing.clock import FakeClock
    from django_idempotency.testing.crash import crash_at
    from django_idempotency.testing.http_contract import HTTPContract
    from django_idempotency.testing.keyed import keyed_client, keyed_clients
    from django_idempotency.testing.overrides import override_store
    from django_idempotency.testing.store_contract import StoreContract

__all__ = [
    "FakeClock",
    "HTTPContract",
    "StoreContract",
    "assert_idempotent",
    "crash_at",
    "keyed_client",
    "keyed_clients",
    "override_store",
]

_HOMES = {
    "FakeClock": "clock",
    "HTTPContract": "http_contract",
    "StoreContract": "store_contract",
    "assert_idempotent": "asserts",
    "crash_at": "crash",
    "keyed_client": "keyed",
    "keyed_clients": "keyed",
    "override_store": "overrides",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the contracts need pytest, the rest does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
