"""Who owns the transaction: the caller, or the attempt (design: three ways to commit)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.exceptions import TransactionOpen
from django_idempotency.policy import Policy
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

__all__ = ["after_commit_of_caller", "mode_for"]


def mode_for(policy: Policy, store: BaseStore, *, coroutine: bool = False) -> str:
    """
    Return "single", "joined" or "separate": the policy's choice, or the default at this place.

    Inside a transaction that the caller opened the default is "single" within it on a database
    store of that alias, and "separate" on any other store, whose completion then waits for the
    commit; "joined" and "separate" asked for by name raise TransactionOpen there, as
    ``atomic(durable=True)`` does. "joined" and "single" on a store that cannot join raise
    ValueError.
    """
    chosen = policy.transaction
    if chosen in ("single", "joined") and not store.supports_join:
        raise ValueError(
            f"transaction={chosen!r} needs a database store; {type(store).__name__} can only "
            f"do 'separate'."
        )
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


def after_commit_of_caller(store: BaseStore) -> Callable[[Callable[[], None]], None] | None:
    """
    Return what postpones a completion until each of the caller's transactions has committed.

    None where nothing needs to be waited for: none is open, or the store is part of it. Raises
    TransactionOpen where autocommit is off, so that nothing would tell of the commit.
    """
    if _is_within(store) or not _open_by_caller():
        return None
    if not all(connection.in_atomic_block for connection in _open_by_caller()):
        raise TransactionOpen(
            "Autocommit is off here, so the commit of the work cannot be waited for. Use atomic()."
        )
    return _after_commit


def _after_commit(complete: Callable[[], None]) -> None:
    """Call `complete` once all that are open now have committed; never, if one rolls back."""
    waiting = {connection.alias for connection in _open_by_caller()}

    def committed(alias: str) -> None:
        waiting.discard(alias)
        if not waiting:
            complete()

    for alias in sorted(waiting):
        transaction.on_commit(partial(committed, alias), using=alias)


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
        return connection.connection is not None and not connection.autocommit
    return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
