"""Who owns the transaction: the caller, or the attempt (design: three ways to commit)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any
from weakref import ref

from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.context import Running
from django_idempotency.exceptions import TransactionOpen
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.policy import Policy
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database.atomic import (
    Block,
    RollbackWatch,
    is_doomed,
    is_lost,
    is_of_testcase,
    is_open,
    is_replaced,
)

__all__ = [
    "CommitHooks",
    "OpenTransactions",
    "OuterTransaction",
    "after_commit",
    "connections_to_let_go",
    "is_any_open",
    "let_connections_go",
    "must_join",
]


class OpenTransactions:
    """
    The caller's open transactions, as one look over this thread's connections finds them.

    Those that a TestCase opened do not count.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._open: list[BaseDatabaseWrapper] = []
        #: Whether the store's own writes would be part of one of them.
        self.within = False
        # As `connections.all(initialized_only=True)` finds them, at half its price.
        made = connections._connections  # type: ignore[attr-defined]
        for alias in connections:
            connection = getattr(made, alias, None)
            if connection is None and alias == store.using:
                connection = connections[alias]  # open before its first use without autocommit
            if connection is not None and is_open(connection):
                self._open.append(connection)
                self.within = self.within or alias == store.using
        #: Whether a duplicate may wait: not while it holds a transaction of the caller (R51).
        self.may_wait = not self._open

    def mode(self, policy: Policy, *, joins: bool = True) -> str:
        """
        Return "single", "joined" or "separate": the policy's choice, or the default at this place.

        That is "joined" where the store can, and "separate" without `joins`: for coroutines, say.

        Inside a transaction that the caller opened the default is "single" within it on a database
        store of that alias, and "separate" on any other store, whose completion then waits for the
        commit; "joined" and "separate" asked for by name raise TransactionOpen there, as
        ``atomic(durable=True)`` does. "joined" and "single" on a store that cannot join raise
        ValueError.
        """
        chosen = policy.transaction
        if chosen is not None:
            must_join(policy, self._store)
        if self.within and chosen in (None, "single"):
            return "single"
        if self._open:
            if chosen is not None:
                raise TransactionOpen(
                    f"transaction={chosen!r} commits on its own, and a transaction is already open "
                    f"here. Leave the choice out to go with that one, or call outside atomic()."
                )
            return "separate"
        if chosen is not None:
            return chosen
        return "joined" if self._store.supports_join and joins else "separate"

    def outer(self) -> OuterTransaction | None:
        """
        Return the transactions that must commit before the store may complete.

        None where nothing needs to be waited for: none is open, or the store is part of it. Raises
        TransactionOpen where autocommit is off, so that nothing would tell of the commit.
        """
        if self.within or not self._open:
            return None
        if not all(
            connection.in_atomic_block and connection.commit_on_exit for connection in self._open
        ):
            raise TransactionOpen(
                "Autocommit is off here, so the commit of the work cannot be waited for. Use "
                "atomic() with autocommit on."
            )
        return OuterTransaction(self._open)

    def commit_hooks(self) -> CommitHooks | None:
        """Return the on_commit hooks of these transactions; None where none is open."""
        blocks = [connection for connection in self._open if connection.in_atomic_block]
        return CommitHooks(blocks) if blocks else None


def must_join(policy: Policy, store: BaseStore) -> None:
    """Raise ValueError where the policy asks for "joined" or "single" and the store cannot join."""
    if policy.transaction in ("single", "joined") and not store.supports_join:
        raise ValueError(
            f"transaction={policy.transaction!r} needs a database store; {type(store).__name__} "
            f"can only do 'separate'."
        )


def is_any_open() -> bool:
    """Whether a transaction, a TestCase's included, is open on one of this thread's connections."""
    made = connections.all(initialized_only=True)
    return any(connection.in_atomic_block or is_open(connection) for connection in made)


def let_connections_go(*, close: bool) -> None:
    """Let those connections go that `connections_to_let_go` names."""
    for connection in connections_to_let_go(close=close):
        connection.close()


def connections_to_let_go(*, close: bool) -> list[BaseDatabaseWrapper]:
    """
    Return this thread's connections that go while it waits, whatever it used them for.

    A pooled one goes back to its pool. Another one is closed only if the caller says so, since it
    takes with it what a session has: a cursor that is being read, an advisory lock. One that is to
    outlive its request stays: its thread has it between requests, too. On the thread that the
    coroutines outside of requests share, all stay: another coroutine may be using them.
    """
    found: list[BaseDatabaseWrapper] = []
    if threading.current_thread() in SyncToAsync.single_thread_executor._threads:
        return found
    for connection in connections.all(initialized_only=True):
        settings = connection.settings_dict
        short_lived = settings["CONN_MAX_AGE"] == 0 and connection.vendor != "sqlite"
        may_close = settings["OPTIONS"].get("pool") or (close and short_lived)
        if may_close and not connection.in_atomic_block:
            found.append(connection)
    return found


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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
