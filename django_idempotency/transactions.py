"""Who owns the transaction: the caller, or the attempt (design: three ways to commit)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.attempts import Attempt
from django_idempotency.exceptions import TransactionOpen
from django_idempotency.policy import Policy
from django_idempotency.stores.base import BaseStore, must_join
from django_idempotency.stores.database import DatabaseStore

__all__ = [
    "CallersHooks",
    "CallersTransactions",
    "hooks_of_caller",
    "may_wait",
    "mode_for",
    "of_caller",
    "rest",
]


def mode_for(policy: Policy, store: BaseStore, *, coroutine: bool = False) -> str:
    """
    Return "single", "joined" or "separate": the policy's choice, or the default at this place.

    Inside a transaction that the caller opened the default is "single" within it on a database
    store of that alias, and "separate" on any other store, whose completion then waits for the
    commit; "joined" and "separate" asked for by name raise TransactionOpen there, as
    ``atomic(durable=True)`` does. "joined" and "single" on a store that cannot join raise
    ValueError.
    """
    must_join(policy, store)
    chosen = policy.transaction
    within = _is_within(store)
    if within and chosen in (None, "single"):
        return "single"
    if within or _open_by_caller():
        if chosen is not None:
            raise TransactionOpen(
                f"transaction={chosen!r} commits on its own, and a transaction is already open "
                f"here. Leave the choice out to go with that one, or call outside atomic()."
            )
        return "separate"
    if chosen is not None:
        return chosen
    return "joined" if store.supports_join and not coroutine else "separate"


def of_caller(store: BaseStore) -> CallersTransactions | None:
    """
    Return the caller's transactions, each of which must commit before the store may complete.

    None where nothing needs to be waited for: none is open, or the store is part of it. Raises
    TransactionOpen where autocommit is off, so that nothing would tell of the commit.
    """
    if _is_within(store) or not (open_ones := _open_by_caller()):
        return None
    if not all(connection.in_atomic_block for connection in open_ones):
        raise TransactionOpen(
            "Autocommit is off here, so the commit of the work cannot be waited for. Use atomic()."
        )
    return CallersTransactions(open_ones)


def hooks_of_caller() -> CallersHooks | None:
    """Return the on_commit hooks of the caller's transactions; None where none is open."""
    open_ones = [connection for connection in _open_by_caller() if connection.in_atomic_block]
    return CallersHooks(open_ones) if open_ones else None


def may_wait() -> bool:
    """Whether a duplicate may wait: not while it holds a transaction of the caller (R51)."""
    return not _open_by_caller()


def rest() -> None:
    """Give this thread's pooled connections back while it waits, whatever it used them for."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["OPTIONS"].get("pool") and not connection.in_atomic_block:
            connection.close()


class CallersTransactions:
    """The caller's open transactions on one or more aliases."""

    def __init__(self, connections: list[BaseDatabaseWrapper]) -> None:
        self._blocks = {
            connection.alias: (connection, connection.atomic_blocks[0])
            for connection in connections
        }
        # Django alone holds the hooks, and drops them when their savepoint is rolled back.
        self._hooks: list[ref[partial[None]]] = []

    def is_open(self) -> bool:
        """Return whether they may still commit, and the completion with them."""
        return all(hook() is not None for hook in self._hooks) and all(
            block in connection.atomic_blocks for connection, block in self._blocks.values()
        )

    def after_commit(self, complete: Callable[[], None]) -> None:
        """Call `complete` once all of them have committed; never, if one rolls back."""
        waiting = set(self._blocks)

        def committed(alias: str) -> None:
            waiting.discard(alias)
            if not waiting:
                complete()

        for alias in self._blocks:
            hook = partial(committed, alias)
            self._hooks.append(ref(hook))
            transaction.on_commit(hook, using=alias)


class CallersHooks:
    """The on_commit hooks of the caller's open transactions, from now on."""

    def __init__(self, connections: list[BaseDatabaseWrapper]) -> None:
        # Of Any: the stubs of Django do not know of hooks that are robust.
        self._before: list[tuple[Any, int]] = [
            (connection, len(connection.run_on_commit)) for connection in connections
        ]

    def belong_to(self, attempt: Attempt) -> None:
        """See `attempts.CallersHooks`."""
        for connection, before in self._before:
            connection.run_on_commit[before:] = [
                (savepoints, partial(attempt.run_hook, hook), robust)
                for savepoints, hook, robust in connection.run_on_commit[before:]
            ]


def _is_within(store: BaseStore) -> bool:
    """Whether the store's own writes would be part of a transaction that the caller opened."""
    return isinstance(store, DatabaseStore) and _is_open_by_caller(store.connection)


def _open_by_caller() -> list[BaseDatabaseWrapper]:
    return [
        connection
        for connection in connections.all(initialized_only=True)
        if _is_open_by_caller(connection)
    ]


def _is_open_by_caller(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open on `connection` that no TestCase opened."""
    if not connection.in_atomic_block:
        if connection.connection is None:
            return not connection.settings_dict["AUTOCOMMIT"]
        return not connection.autocommit
    return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
