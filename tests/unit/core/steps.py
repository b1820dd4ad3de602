"""Attempts in steps, under the key "k" of scope "s"."""

from __future__ import annotations

from typing import Any

import django_idempotency as idempotency
from tests.unit.core.conftest import run_in_loop


class Boom(Exception):
    """What ends an attempt."""


def run(func: Any, key: str = "k", **arguments: Any) -> Any:
    return idempotency.run(func, key=key, scope="s", transaction="steps", **arguments)


def arun(func: Any, key: str = "k", **arguments: Any) -> Any:
    """Await a coroutine function of a lease in a loop of its own."""
    return run_in_loop(
        lambda: idempotency.arun(func, key=key, scope="s", transaction="steps", **arguments)
    )
