"""How the steps of a coroutine's attempt run: on which threads, and each to its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext, sync_to_async

from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database.carried import (
    Session,
    carry,
    carry_later,
    close_all,
    let_go,
    sessions_here,
)
from django_idempotency.stores.forks import in_each_child
from django_idempotency.transactions.connections import connections_to_let_go
from django_idempotency.transactions.state import is_any_open

T = TypeVar("T")

#: How many coroutines may call one store at the same time; more of them queue.
_THREADS = 64

_all_threads: WeakSet[StoreThreads] = WeakSet()


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


class StoreThreads:
    """
    The threads on which coroutines call one store that is no database.

    They are the store's own, and never those of the event loop or of the project's connections: a
    server that hangs stops nobody who does not ask it.
    """

    def __init__(self) -> None:
        self.reset()
        _all_threads.add(self)

    def reset(self) -> None:
        """Start with no threads: those of the parent are not there in a forked child."""
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="django-idempotency-store")

    async def call(self, function: Callable[..., T], /, *args: Any) -> T:
        """Call `function` on one of the threads, as part of the attempts of this coroutine."""
        called = sync_to_async(function, thread_sensitive=False, executor=self._executor)
        return await called(*args)


@in_each_child
def _reset_all() -> None:
    for threads in _all_threads:
        threads.reset()


@asynccontextmanager
async def own_thread(store: BaseStore, *, of_request: bool) -> AsyncIterator[None]:
    """
    Run the database work of the block on a thread of its own, and close the connections it opens.

    Other coroutines use the caller's thread, and one's rollback would take another's rows. Inside a
    transaction that is open there, a TestCase's included, the caller's thread is the right one. The
    new connections are in the schema, the role and the tenant of the caller's.
    """
    sessions = await sync_to_async(_leave)(store, of_request)
    if sessions is None:
        yield
        return
    executor = ThreadPoolExecutor(1, thread_name_prefix="django-idempotency")
    try:
        async with _context(executor):
            try:
                if sessions:
                    await sync_to_async(carry)(sessions)
                yield
            finally:
                close = sync_to_async(close_all)
                await finish(close(store.session_variables))
    finally:
        executor.shutdown(wait=False)


def _leave(store: BaseStore, of_request: bool) -> list[Session] | None:
    """
    Return the sessions of this thread, which is the caller's; None if the work may not leave it.

    A request then gives back what it has of a pool: if each held two connections, all of them could
    wait for a second one. Raises SessionLost where a session cannot be read.
    """
    if is_any_open():
        return None
    using, variables = store.using, store.session_variables
    if of_request:
        gone = let_go(connections_to_let_go(close=False), using, variables)
        carry_later(gone)  # to what is left of the request, and to its other coroutines
    return sessions_here(using, variables)


if sys.version_info >= (3, 11):

    def _context(executor: Executor) -> ThreadSensitiveContext:
        """Return the block whose thread-sensitive calls run on `executor`, whatever is around."""
        return ThreadSensitiveContext(executor=executor)

else:  # asgiref 3.13, which can do this, needs Python 3.11

    class _context(ThreadSensitiveContext):
        """The block whose thread-sensitive calls run on `executor`, whatever is around it."""

        def __init__(self, executor: Executor) -> None:
            super().__init__()
            self._executor = executor

        async def __aenter__(self) -> Any:
            self.token = SyncToAsync.thread_sensitive_context.set(self)
            SyncToAsync.context_to_thread_executor[self] = self._executor
            # Below `async_to_sync` its caller's thread goes before any context.
            self._caller = getattr(AsyncToSync.executors, "current", None)
            AsyncToSync.executors.current = None
            return self

        async def __aexit__(self, *exc_info: Any) -> None:
            AsyncToSync.executors.current = self._caller
            SyncToAsync.thread_sensitive_context.reset(self.token)
