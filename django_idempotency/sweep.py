"""The sweep: deleting expired records where the store does not do so itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from django_idempotency.conf import store_for, stores

__all__ = ["sweep"]


def sweep(
    alias: str | None = None,
    *,
    limit: int = 5000,
    max_seconds: float | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> dict[str, int]:
    """
    Delete expired records in batches of `limit`, and return how many there were per alias.

    Of one alias, or of all whose stores need it. Stops when nothing is left or after
    `max_seconds`; `progress` is called with the alias and the count so far after each batch. Two
    sweeps at once do no harm. Raises InvalidStore and StoreError.
    """
    ends = None if max_seconds is None else time.monotonic() + max_seconds
    swept: dict[str, int] = {}
    for name in [alias] if alias is not None else list(stores):
        store = store_for(name)
        if store.native_expiry:
            continue
        swept[name] = 0
        while ends is None or time.monotonic() < ends:
            batch = store.sweep(limit=limit)
            swept[name] += batch
            if progress is not None:
                progress(name, swept[name])
            if batch < limit:
                break
    return swept
