"""What is open on a connection, what the work has asked for, and what dooms it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

from django.db import DatabaseError, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.exceptions.base import SessionLost
from django_idempotency.transactions.errors import is_serialization_failure, is_unreachable

#: libpq's transaction status outside of any transaction, in one, and in one that met an error.
_IDLE, _IN_TRANSACTION, _IN_ERROR = 0, 2, 3
#: Where a connection has its observer.
_OBSERVER = "_idempotency_observer"
#: What Django calls before each statement of a cursor.
_BEFORE_STATEMENT = "validate_no_broken_transaction"
#: Threads may share a connection: they must not install two.
_observing = threading.Lock()


def is_open(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction is open on the connection that no TestCase opened."""
    if not connection.in_atomic_block:
        if connection.connection is None:
            return not connection.settings_dict["AUTOCOMMIT"]
        return not connection.autocommit
    return not all(is_of_testcase(block) for block in connection.atomic_blocks)


def is_of_testcase(block: Any) -> bool:
    """Return whether a TestCase opened the block."""
    return bool(getattr(block, "_from_testcase", False))


def is_any_open() -> bool:
    """Whether a transaction, a TestCase's included, is open on one of this thread's connections."""
    made = connections.all(initialized_only=True)
    return any(connection.in_atomic_block or is_open(connection) for connection in made)


def commits_alone(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a statement is its own transaction on this connection to PostgreSQL."""
    if connection.in_atomic_block:
        return False
    driver: Any = connection.connection
    if driver is None:
        return bool(connection.settings_dict["AUTOCOMMIT"])
    # The driver also knows of a BEGIN that was sent as a statement.
    return connection.autocommit and driver.info.transaction_status == _IDLE


def transaction_around(connection: Any) -> Literal["none", "idle", "open"]:
    """
    Return what a statement would be part of that is sent now, blocks of a TestCase aside.

    "none": it commits by itself. "open": a transaction that somebody else is to end, or whose
    session is lost. "idle": autocommit is off, and nothing was done since the last COMMIT.
    A BEGIN that was sent as a statement counts, except on MariaDB, whose driver does not know it.
    """
    driver: Any = connection.connection
    if connection.in_atomic_block or driver is None:
        return "open" if is_open(connection) else "none"
    try:
        if connection.vendor == "sqlite":
            status = _IN_TRANSACTION if driver.in_transaction else _IDLE
        elif connection.vendor == "postgresql":
            status = driver.info.transaction_status
        elif connection.autocommit:
            status = _IDLE
        else:
            with connection.cursor() as cursor:
                cursor.execute("SELECT @@in_transaction")
                status = _IDLE if cursor.fetchone() == (0,) else _IN_TRANSACTION
    except (Error, connection.Database.Error):  # that of SQLite is the driver's
        status = _IN_ERROR
    if connection.autocommit:
        return "open" if status in (_IN_TRANSACTION, _IN_ERROR) else "none"
    return "idle" if status == _IDLE else "open"


def _status(connection: BaseDatabaseWrapper) -> int | None:
    """Return libpq's transaction status, which takes no round trip; None where there is none."""
    driver: Any = connection.connection
    libpq = getattr(driver, "pgconn", None) or getattr(driver, "info", None)  # psycopg 3, or 2
    return getattr(libpq, "transaction_status", None)


class RollbackWatch:
    """
    Whether the work calls ``set_rollback(True)`` for the innermost open block (R91).

    The last call decides. One for a savepoint of the work's own is about that savepoint alone.
    """

    def __init__(self, connection: Any) -> None:
        self.deliberate = False
        # Django makes both anew where it connects; a pool may give the same connection again.
        self.session = connection.connection, connection.atomic_blocks
        self._depth = len(connection.atomic_blocks)
        #: The server has begun the transaction: on PostgreSQL the first statement brings the BEGIN.
        self.has_begun = connection.vendor != "postgresql" or _status(connection) != _IDLE
        with _observing:
            observer = vars(connection).get(_OBSERVER) or _Observer(connection)
            observer.watches.append(self)
            if not self.has_begun:
                observer.note_first_statement()
        self._observer = observer

    def note(self, connection: Any, rollback: bool) -> None:
        """Note a call, unless it is for a savepoint that was opened since."""
        within = len(connection.atomic_blocks) - self._depth
        if within < 1 or not any(connection.savepoint_ids[-within:]):
            self.deliberate = rollback

    def end(self) -> None:
        """Watch no longer; the last one leaves the connection as the first one found it."""
        with _observing:
            self._observer.watches.remove(self)
            if not self._observer.watches:
                self._observer.leave()


class _Observer:
    """
    What is installed on a connection, once for all the watches that are open on it.

    It marks the block, as Django does for errors that it sees, where MariaDB has rolled all of the
    transaction back to end a deadlock: what follows would commit without what came before.
    """

    def __init__(self, connection: Any) -> None:
        self.watches: list[RollbackWatch] = []
        self._connection = connection
        self._of_instance = vars(connection).get("set_rollback")
        self._set_rollback = connection.set_rollback
        connection.set_rollback = self._note
        if connection.vendor == "mysql":
            # The first: where a project leaves a wrapper of its own, Django takes the last one.
            connection.execute_wrappers.insert(0, self._execute)
        vars(connection)[_OBSERVER] = self

    def note_first_statement(self) -> None:
        """Note the next statement that goes through a cursor, and none after it."""
        vars(self._connection).setdefault(_BEFORE_STATEMENT, self._note_statement)

    def _note_statement(self) -> None:
        self._forget_first_statement()
        for watch in self.watches:
            watch.has_begun = True
        self._connection.validate_no_broken_transaction()

    def _forget_first_statement(self) -> None:
        if vars(self._connection).get(_BEFORE_STATEMENT) == self._note_statement:
            del vars(self._connection)[_BEFORE_STATEMENT]

    def _note(self, rollback: bool) -> None:
        self._set_rollback(rollback)
        for watch in self.watches:
            watch.note(self._connection, rollback)

    def _execute(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        try:
            return execute(sql, params, many, context)
        except DatabaseError as error:
            if is_serialization_failure(error):
                self._connection.needs_rollback = True
            raise

    def leave(self) -> None:
        """Leave the connection as it was."""
        connection = self._connection
        del vars(connection)[_OBSERVER]
        self._forget_first_statement()
        if self._execute in connection.execute_wrappers:
            connection.execute_wrappers.remove(self._execute)
        if self._of_instance is None:
            del connection.set_rollback
        else:
            connection.set_rollback = self._of_instance


def not_begun(connection: BaseDatabaseWrapper, error: Error) -> SessionLost:
    """Return what to raise for an error of the driver's that kept a transaction from beginning."""
    unreachable = is_unreachable(connection, error)
    return SessionLost("A transaction could not be begun.", unreachable=unreachable)


def is_doomed(connection: BaseDatabaseWrapper) -> bool:
    """
    Return whether the open transaction can only be rolled back, though no exception leaves it.

    Django marks it so for an error that an ORM call met; after a raw statement's error only the
    driver knows, and PostgreSQL answers the COMMIT with a silent rollback. SQLite has ended it
    after ``INSERT OR ROLLBACK``, or when its disk is full. On both, a ROLLBACK or COMMIT that was
    sent as a statement has ended it. Where the work has connected anew, the transaction is gone
    with its session, and Django knows of none.
    """
    if is_replaced(connection):
        return True
    if not connection.in_atomic_block:
        return False
    if connection.needs_rollback:  # asked first: SQLite's driver says nothing once it is closed
        return True
    driver: Any = connection.connection
    if connection.vendor == "sqlite":
        return not getattr(driver, "in_transaction", True)
    status = _status(connection) if connection.vendor == "postgresql" else _IN_TRANSACTION
    if status == _IDLE:  # so it is, too, before its first statement
        observer = vars(connection).get(_OBSERVER)
        return observer is not None and any(watch.has_begun for watch in observer.watches[-1:])
    return status == _IN_ERROR


def is_replaced(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the work goes on in another session than that in which it began."""
    observer = vars(connection).get(_OBSERVER)
    if observer is None or not observer.watches:
        return False
    driver, blocks = observer.watches[-1].session
    return driver is not connection.connection or blocks is not connection.atomic_blocks


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
    if is_replaced(connection):
        return True
    if connection.vendor == "postgresql":
        return bool(connection.connection.closed)
    return connection.vendor == "mysql" and not connection.is_usable()
