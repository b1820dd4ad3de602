"""What a cancelled coroutine still does to its end (R63)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def finish(ending: Awaitable[T]) -> T:
    """Await `ending` to its end, also if this coroutine is cancelled meanwhile (R63)."""
    task = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        cancelled.__cause__ = failure
    raise cancelled
