"""Who owns the transaction: the caller, or the attempt (design: three ways to commit)."""

from __future__ import annotations

from collections.abc import Callable

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

    Inside a transaction that the caller opened the default on a database store is "single" within
    it; "joined" and "separate" asked for by name raise TransactionOpen there, as
    ``atomic(durable=True)`` does. "joined" and "single" on a store that cannot join raise
    ValueError.
    """
    chosen = policy.transaction
    if chosen in ("single", "joined") and not store.supports_join:
        raise ValueError(
            f"transaction={chosen!r} needs a database store; {type(store).__name__} can only "
            f"do 'separate'."
        )
    if not isinstance(store, DatabaseStore):
        if chosen == "separate" and _open_by_caller():
            raise _transaction_open(chosen)
        return "separate"
    if _is_open_by_caller(store.connection):
        if chosen in ("joined", "separate"):
            raise _transaction_open(chosen)
        return "single"
    if chosen is not None:
        return chosen
    return "separate" if coroutine else "joined"


def after_commit_of_caller(
    store: BaseStore,
) -> Callable[[Callable[[], None]], None] | None:
    """
    Return what postpones a completion until the caller's transactions have committed.

    None where nothing needs to be waited for: no transaction is open, or the store is part of it.
    """
    if isinstance(store, DatabaseStore) or not _open_by_caller():
        return None
    return _after_commit


def _after_commit(complete: Callable[[], None]) -> None:
    """Call `complete` when the last of the caller's open transactions has committed."""
    open_ones = _open_by_caller()
    if not open_ones:
        complete()
        return
    transaction.on_commit(lambda: _after_commit(complete), using=open_ones[0].alias)


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


def _transaction_open(chosen: str) -> TransactionOpen:
    return TransactionOpen(
        f"transaction={chosen!r} commits on its own, and a transaction is already open here. "
        f"Leave the choice out to take part in it, or call outside atomic()."
    )
