"""Idempotency keys for Django: exactly-once effects for requests, tasks and calls."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from django_idempotency import exceptions
from django_idempotency.exceptions import *  # noqa: F403

if TYPE_CHECKING:
    from django_idempotency.api import (
        aexternal,
        arun,
        astep,
        attempt,
        current,
        derive_key,
        external,
        idempotent_function,
        run,
        step,
    )
    from django_idempotency.conf import InvalidStore
    from django_idempotency.records import Outcome

__version__ = "0.1.0"

__all__ = [
    "InvalidStore",
    "Outcome",
    "aexternal",
    "arun",
    "astep",
    "attempt",
    "current",
    "derive_key",
    "external",
    "idempotent_function",
    "run",
    "step",
]
_HOMES = {**dict.fromkeys(__all__, "api"), "InvalidStore": "conf", "Outcome": "records"}
__all__ += exceptions.__all__


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: apps are not ready when this package loads."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
