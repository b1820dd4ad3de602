"""The transaction around work and record, which knows whose it is."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import (
    DatabaseError,
    Error,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.context import Running, running
from django_idempotency.exceptions import StoreError, TransactionOpen
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.stores.database.errors import (
    is_connection_failure,
    is_serialization_failure,
)

__all__ = [
    "Block",
    "RollbackWatch",
    "is_doomed",
    "is_lost",
    "is_rolled_back",
]

#: libpq's transaction status of a transaction that met an error.
_IN_ERROR = 3


class RollbackWatch:
    """
    Whether the work calls ``set_rollback(True)`` for the innermost open block (R91).

    The last call decides. One for a savepoint of the work's own is about that savepoint alone.
    Marks the block, as Django does for errors that it sees, where MariaDB has rolled all of the
    transaction back to end a deadlock: what follows would commit without what came before.
    """

    def __init__(self, connection: Any) -> None:
        self.deliberate = False
        self._connection = connection
        self._before = vars(connection).get("set_rollback")
        depth, set_rollback = len(connection.atomic_blocks), connection.set_rollback

        def note(rollback: bool) -> None:
            set_rollback(rollback)
            within = len(connection.atomic_blocks) - depth
            if within == 0 or not any(connection.savepoint_ids[-within:]):
                self.deliberate = rollback

        connection.set_rollback = note
        if connection.vendor == "mysql":
            connection.execute_wrappers.append(self._execute)

    def _execute(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        try:
            return execute(sql, params, many, context)
        except DatabaseError as error:
            if is_serialization_failure(error):
                self._connection.needs_rollback = True
            raise

    def end(self) -> None:
        """Leave the connection as it was."""
        if self._execute in self._connection.execute_wrappers:
            self._connection.execute_wrappers.remove(self._execute)
        if self._before is None:
            del self._connection.set_rollback
        else:
            self._connection.set_rollback = self._before


class Block:
    """
    An ``atomic()`` of the store, which knows whose it is.

    Coroutines that share a thread share its connection: the transaction of one must not take in
    the statements of another.
    """

    _open: ClassVar[WeakKeyDictionary[BaseDatabaseWrapper, Block]] = WeakKeyDictionary()

    def __init__(self, using: str, committed: Callable[[], None] | None = None) -> None:
        self.using = using
        self._tell = committed
        #: The transaction is known to have committed: what fails now is a hook's own affair.
        self.committed = False
        #: The record id whose lock this block's transaction took.
        self.held: UUID | None = None
        self.outer: Block | None = None
        #: The attempt that this block is part of.
        self.owner: Running | None = None
        #: Open from the first statement of the block to its last.
        self.watch: RollbackWatch

    @classmethod
    def on(cls, connection: BaseDatabaseWrapper) -> Block | None:
        """Return the innermost open block on this connection."""
        return cls._open.get(connection)

    @classmethod
    def is_foreign(cls, connection: BaseDatabaseWrapper) -> bool:
        """Return whether the connection is in the transaction of another attempt."""
        block = cls._open.get(connection)
        return block is not None and block.owner is not None and block.owner not in running()

    @staticmethod
    def open_error() -> TransactionOpen:
        """Return the error of an attempt that would interleave with another one."""
        return TransactionOpen(
            "Another attempt's transaction is open on this thread's connection. Await one "
            "attempt after the other."
        )

    def holds(self, record_id: UUID) -> bool:
        """Whether this block or one around it holds the lock of `record_id`."""
        return self.held == record_id or (self.outer is not None and self.outer.holds(record_id))

    def __enter__(self) -> None:
        connection = connections[self.using]
        if self.is_foreign(connection):
            raise self.open_error()
        self._atomic = transaction.atomic(using=self.using)
        try:
            self._atomic.__enter__()
        except Error as error:
            raise SessionLost("A transaction could not be begun.") from error
        self.watch = RollbackWatch(connection)
        self.outer = self._open.get(connection)
        self._open[connection] = self
        self.owner = next(reversed(running()), None)
        if len(connection.atomic_blocks) == 1 and connection.commit_on_exit:
            # It is this block that commits, or does not. With autocommit off its end does neither.
            transaction.on_commit(self._note_commit, using=self.using)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        connection = connections[self.using]
        self.watch.end()
        if self.outer is None:
            self._open.pop(connection, None)
        else:
            self._open[connection] = self.outer
        try:
            self._atomic.__exit__(exc_type, exc_value, traceback)
        except (InterfaceError, OperationalError) as error:
            if exc_type is None and not self.committed and is_connection_failure(error):
                raise StoreError("The connection was lost at the COMMIT.") from error
            raise

    def _note_commit(self) -> None:
        self.committed = True
        if self._tell is not None:
            self._tell()


def is_doomed(connection: BaseDatabaseWrapper) -> bool:
    """
    Return whether the open transaction can only be rolled back, though no exception leaves it.

    Django marks it so for an error that an ORM call met; after a raw statement's error only the
    driver knows, and PostgreSQL answers the COMMIT with a silent rollback. SQLite has ended it
    after ``INSERT OR ROLLBACK``, or when its disk is full.
    """
    if not connection.in_atomic_block:
        return False
    if connection.needs_rollback:  # asked first: SQLite's driver says nothing once it is closed
        return True
    driver: Any = connection.connection
    if connection.vendor == "sqlite" and not getattr(driver, "in_transaction", True):
        return True
    info = getattr(driver, "info", None)
    return getattr(info, "transaction_status", 0) == _IN_ERROR


def is_rolled_back(connection: BaseDatabaseWrapper) -> bool:
    """
    Return whether the transaction `is_doomed`.

    Raises SessionLost where its session `is_lost`: an answer would tell of work that is gone.
    """
    if not is_doomed(connection):
        return False
    if is_lost(connection):
        raise SessionLost
    return True


def is_lost(connection: BaseDatabaseWrapper) -> bool:
    """
    Return whether the session of the open transaction is gone, and what was done in it.

    To be asked of a transaction that `is_doomed`.
    """
    if connection.connection is None or connection.closed_in_transaction:
        return True
    if connection.vendor == "postgresql":
        return bool(connection.connection.closed)
    return connection.vendor == "mysql" and not connection.is_usable()
