"""The sweep as a Celery task, for beat; without Celery it is a plain function."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from django_idempotency.observers import logger
from django_idempotency.sweep import sweep

__all__ = ["sweep_expired"]

#: The fraction of its time in which the task works; in the rest, claims have the database.
SHARE = 0.25

F = TypeVar("F", bound=Callable[..., Any])


def _as_task(function: F) -> F:
    """Return a shared task if Celery is installed; other packages import modules "tasks", too."""
    if find_spec("celery") is None:
        return function
    from celery import shared_task

    return cast(F, shared_task(function))


@_as_task
def sweep_expired(
    store: str | None = None,
    limit: int = 5000,
    max_seconds: float = 50,
    schema: str | None = None,
) -> dict[str, int]:
    """
    Delete expired records in batches of `limit`, and return how many there were per alias.

    Sweeps one alias, or all that need it; with a `schema`, the table there (PostgreSQL). Stops when
    nothing is left or after `max_seconds`. Two sweeps at once do no harm. Raises InvalidStore. If a
    store cannot be reached, raises its StoreError after the other stores have been swept.
    """
    return sweep(
        store, schema=schema, limit=limit, max_seconds=max_seconds, share=SHARE, progress=_log
    )


def _log(alias: str, count: int) -> None:
    logger.debug("Sweeping %s: %d expired records deleted so far.", alias, count)
