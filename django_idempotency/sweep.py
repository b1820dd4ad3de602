"""The sweep: deletes expired records in stores that do not delete them by themselves."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from django_idempotency import signals
from django_idempotency.conf import store_for, stores
from django_idempotency.exceptions import StoreError
from django_idempotency.logs import log_failure
from django_idempotency.observers import logger
from django_idempotency.stores.base import BaseStore

__all__ = ["sweep", "there"]


def sweep(
    alias: str | None = None,
    *,
    schema: str | None = None,
    limit: int = 5000,
    max_seconds: float | None = None,
    share: float = 1.0,
    progress: Callable[[str, int], None] | None = None,
) -> dict[str, int]:
    """
    Delete expired records in batches of `limit`, and return how many there were per alias.

    Sweeps one alias, or all whose stores need it, a batch of each in turn; with a `schema`, the
    table there, of the stores that have schemas (PostgreSQL). Stops when nothing is left or after
    `max_seconds`. Calls `progress` with the alias and the count so far after each batch. Works for
    `share` (above 0, at most 1) of the time and pauses for the rest, so that claims are not slowed
    down. Two sweeps at once do no harm. Raises InvalidStore and ValueError before it deletes
    anything. If a store cannot be reached, its StoreError is logged, its time is not counted, and
    the first such error is raised after the others have been swept.
    """
    if limit < 1:
        raise ValueError("limit must be at least 1.")
    if max_seconds is not None and not max_seconds >= 0:  # refuses NaN, too
        raise ValueError("max_seconds must be at least 0.")
    if not 0 < share <= 1:
        raise ValueError("share must be above 0, and at most 1.")
    began_all = time.monotonic()
    ends = math.inf if max_seconds is None else began_all + max_seconds
    found = {name: store_for(name) for name in (stores if alias is None else [alias])}
    if schema is not None and not any(store.has_schemas for store in found.values()):
        raise ValueError("schema names one of PostgreSQL's: no store that is meant has any.")
    turns = deque(
        (name, store)
        for name, store in found.items()
        if not store.native_expiry and (schema is None or store.has_schemas)
    )
    swept = {name: 0 for name, _ in turns}
    errors: list[StoreError] = []
    while turns and (began := time.monotonic()) < ends:
        name, store = turns.popleft()
        try:
            with there(store, schema):
                batch = store.sweep(limit=limit)
        except StoreError as error:
            log_failure("The sweep of %s has failed.", name, error=error)
            errors.append(error)
            ends += time.monotonic() - began
            continue
        swept[name] += batch
        if progress is not None:
            progress(name, swept[name])
        if batch >= limit:
            turns.append((name, store))
        now = time.monotonic()
        rest = (now - began) * (1 / share - 1)
        if turns and now + rest >= ends:
            break
        if turns and rest > 0:
            time.sleep(rest)
    for name, count in swept.items():
        logger.info("Swept %s: %d expired records deleted.", name, count)
        duration = time.monotonic() - began_all
        signals.swept.send_robust(type(found[name]), alias=name, count=count, duration=duration)
    if errors:
        raise errors[0]
    return swept


def there(store: BaseStore, schema: str | None) -> AbstractContextManager[None]:
    """Return the block of calls in a schema; None is where each call finds itself."""
    return nullcontext() if schema is None else store.in_schema(schema)
