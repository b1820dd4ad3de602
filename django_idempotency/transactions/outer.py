"""The caller's transactions, whose commit an attempt waits for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.context import Running
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.transactions.block import Block
from django_idempotency.transactions.state import (
    RollbackWatch,
    is_doomed,
    is_lost,
    is_of_testcase,
    is_open,
    is_replaced,
)


def after_commit(using: str, function: Callable[[], None]) -> None:
    """
    Call `function` once the caller's transaction has committed.

    At once if none is open, and where autocommit is off, so that nothing would tell of the commit.
    """
    connection = connections[using]
    if connection.in_atomic_block and connection.commit_on_exit:
        _CommitHook(function).register(connection)
    else:
        function()


class OuterTransaction:
    """
    The caller's open transactions on one or more aliases, which the store is not part of.

    As a context manager it is the block of the work.
    """

    def __init__(self, connections: list[BaseDatabaseWrapper]) -> None:
        self._connections = connections
        self._uncommitted = {connection.alias for connection in connections}
        # Django alone holds the hooks, and drops them when their savepoint is rolled back.
        self._hooks: list[tuple[str, ref[_CommitHook]]] = []
        self._watches: list[tuple[BaseDatabaseWrapper, RollbackWatch]] = []

    def __enter__(self) -> None:
        """Open the block of the work: a rollback that is inevitable at its end is its own (R91)."""
        self._watches = [
            (connection, RollbackWatch(connection))
            for connection in self._connections
            if not is_doomed(connection)
        ]

    def __exit__(self, *exc_info: object) -> None:
        for _, watch in reversed(self._watches):
            watch.end()

    def rolled_back(self) -> bool:
        """
        Return whether the work has left one of them that can only be rolled back.

        Raises SessionLost where it has connected anew: no commit there is that of the work.
        """
        return bool(self._doomed())

    def rollback_is_deliberate(self) -> bool:
        """Return whether the work called ``set_rollback(True)`` for each of those."""
        return all(watch.deliberate for watch in self._doomed())

    def _doomed(self) -> list[RollbackWatch]:
        if any(is_replaced(connection) for connection, _ in self._watches):
            raise SessionLost("The session in which the work has begun is lost.")
        return [
            watch
            for connection, watch in self._watches
            if is_doomed(connection) and not is_lost(connection)
        ]

    def is_open(self) -> bool:
        """
        Return whether the completion may still come: every hook has run, or waits to.

        Asked from any thread.
        """
        # In this order: a hook that has run leaves `_uncommitted` before it is dropped.
        return bool(self._uncommitted) and all(
            hook() is not None or alias not in self._uncommitted for alias, hook in self._hooks
        )

    def after_commit(self, complete: Callable[[], None]) -> None:
        """Call `complete` once all of them have committed; never, if one rolls back (R94)."""

        def committed(alias: str) -> None:
            self._uncommitted.discard(alias)
            if not self._uncommitted:
                complete()

        for connection in self._connections:
            hook = _CommitHook(partial(committed, connection.alias))
            self._hooks.append((connection.alias, ref(hook)))
            hook.register(connection)


class _CommitHook:
    """A hook that runs when the caller's transaction commits, before the caller's own hooks."""

    def __init__(self, committed: Callable[[], None]) -> None:
        self._committed = committed

    def register(self, connection: Any) -> None:
        """
        Put the hook before the first one of the caller's outermost block.

        `transaction.on_commit` would put it last, where a hook that raises makes Django drop it.
        """
        if not is_open(connection):
            self.run()
        elif not connection.closed_in_transaction:  # what is closed can only roll back
            entry = (set(connection.savepoint_ids), self.run, True)
            connection.run_on_commit.insert(_first_place(connection), entry)

    def run(self) -> None:
        self._committed()


class CommitHooks:
    """The on_commit hooks of the caller's open transactions, from now on."""

    def __init__(self, connections: list[BaseDatabaseWrapper]) -> None:
        # Of Any: the stubs of Django do not know of hooks that are robust.
        self._before: list[tuple[Any, int]] = [
            (connection, sum(not _is_ours(entry) for entry in connection.run_on_commit))
            for connection in connections
        ]

    def belong_to(self, attempt: Running) -> None:
        """Let all that was left since the operation was made run as part of `attempt`."""
        for connection, before in self._before:
            hooks = connection.run_on_commit
            callers = [place for place, entry in enumerate(hooks) if not _is_ours(entry)]
            for place in callers[before:]:
                savepoints, hook, robust = hooks[place]
                hooks[place] = (savepoints, attempt.hook(hook), robust)


def _first_place(connection: Any) -> int:
    """
    Return where in `run_on_commit` the hooks of the caller's outermost block begin.

    After those of ours that are there, so that inner attempts complete before outer ones. Within
    a TestCase only the block's savepoint tells its hooks from earlier ones; without a savepoint
    the place is the end.
    """
    hooks = connection.run_on_commit
    of_testcase = sum(is_of_testcase(block) for block in connection.atomic_blocks)
    # The block that began the transaction has no savepoint, and every hook is within it.
    savepoint = connection.savepoint_ids[of_testcase - 1] if of_testcase else None
    for place, entry in enumerate(hooks):
        is_within = not of_testcase or (savepoint is not None and savepoint in entry[0])
        if is_within and not _is_ours(entry):
            return place
    return len(hooks)


def _is_ours(entry: tuple[Any, ...]) -> bool:
    """Whether an entry of `run_on_commit` is the hook of a completion or of a store's block."""
    return isinstance(getattr(entry[1], "__self__", None), (Block, _CommitHook))
