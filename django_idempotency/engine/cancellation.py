"""What a cancelled coroutine still does to its end (R63)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

__all__ = ["closing", "finish", "to_the_end"]

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


@asynccontextmanager
async def to_the_end(block: AbstractAsyncContextManager[Any]) -> AsyncIterator[None]:
    """Open `block` so that neither its opening nor its exit is cut short by a cancellation."""
    try:
        await finish(block.__aenter__())
    except asyncio.CancelledError as cancelled:
        if cancelled.__cause__ is None:  # it has been opened, nevertheless
            await finish(block.__aexit__(type(cancelled), cancelled, cancelled.__traceback__))
        raise
    async with closing(block):
        yield


@asynccontextmanager
async def closing(block: AbstractAsyncContextManager[Any]) -> AsyncIterator[None]:
    """Close a block that is open: no turn of the loop, and so no cancellation, on the way in."""
    try:
        yield
    except BaseException as error:
        if not await finish(block.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        await finish(block.__aexit__(None, None, None))
