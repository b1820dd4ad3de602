"""Idempotency keys for Django: exactly-once effects for requests, tasks and calls."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_idempotency.api import (
        arun,
        attempt,
        current,
        derive_key,
        idempotent_function,
        run,
    )
    from django_idempotency.conf import InvalidStore
    from django_idempotency.exceptions import (
        FingerprintMismatch,
        IdempotencyError,
        InProgress,
        InvalidKey,
        KeyRequired,
        LeaseLost,
        ResultTooLarge,
        ResultUnavailable,
        ScopeMissing,
        StoreError,
        TaskFailed,
        TransactionOpen,
        WorkRolledBack,
    )
    from django_idempotency.records import Outcome

__version__ = "0.1.0"

__all__ = [
    "FingerprintMismatch",
    "IdempotencyError",
    "InProgress",
    "InvalidKey",
    "InvalidStore",
    "KeyRequired",
    "LeaseLost",
    "Outcome",
    "ResultTooLarge",
    "ResultUnavailable",
    "ScopeMissing",
    "StoreError",
    "TaskFailed",
    "TransactionOpen",
    "WorkRolledBack",
    "arun",
    "attempt",
    "current",
    "derive_key",
    "idempotent_function",
    "run",
]

_HOMES = {
    "InvalidStore": "conf",
    "Outcome": "records",
    "arun": "api",
    "attempt": "api",
    "current": "api",
    "derive_key": "api",
    "idempotent_function": "api",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: apps are not ready when this package loads."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'exceptions')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
