"""Running the database store's statements: on which connection, and what becomes of an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import (
    DEFAULT_DB_ALIAS,
    Error,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.exceptions import StoreError
from django_idempotency.exceptions.base import AFTER_SETUP
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import inherited
from django_idempotency.stores.database.dialect import Dialect, Row
from django_idempotency.stores.database.fresh import fresh_connection
from django_idempotency.stores.database.mariadb import MariaDB
from django_idempotency.stores.database.places import Place, place_of
from django_idempotency.stores.database.postgresql import PostgreSQL
from django_idempotency.stores.database.rows import record_of
from django_idempotency.stores.database.sqlite import SQLite
from django_idempotency.stores.options import text_of
from django_idempotency.transactions.block import Block
from django_idempotency.transactions.errors import (
    is_connection_failure,
    is_no_column,
    is_no_table,
    is_serialization_failure,
    is_unreachable,
)

DIALECTS: dict[str, Dialect] = {
    "mysql": MariaDB(),
    "postgresql": PostgreSQL(),
    "sqlite": SQLite(),
}

#: How often a statement that is its own transaction is sent.
_TRIES = 3
#: What opens an attempt; it is refused where another's transaction is open on the connection.
_CLAIMS = ("CLAIM", "CLAIM_ASYNC", "RECLAIM", "RECLAIM_ASYNC", "SINGLE_LOCK")
#: Statements that are conditional on the proof of ownership, and so may be sent twice.
_OWNERS_WRITES = ("COMPLETE", "FAIL", "RELEASE", "NOTE")
#: Statements that do nothing in a session of another role, or with other variables.
_IN_THEIR_SESSION = (*_OWNERS_WRITES, "SINGLE_INSERT", "SINGLE_UPDATE")
#: What a name of a session's variable looks like; `text` puts it into statements.
_VARIABLE = re.compile(r"[A-Za-z_][\w$]*(\.[A-Za-z_][\w$]*)*", re.ASCII)
#: How many texts of statements a store keeps: some for each schema.
_TEXTS = 2000


class Statements(BaseStore):
    """The statements of one alias's vendor, sent on this thread's write connection."""

    using: str

    #: The server was found to have what the statements need.
    _is_supported = False

    def __init__(
        self,
        *,
        using: str = "default",
        prepare: bool | None = None,
        async_claim: bool = False,
        session_variables: Collection[str] = (),
    ) -> None:
        """
        Take the alias of the database, and what the store may do on PostgreSQL.

        With `async_claim` the server answers a claim in mode ``joined`` before it is on its disk.
        An attempt keeps the values that the `session_variables` had at its claim.
        """
        if prepare not in (None, True, False):
            raise TypeError(f"prepare is None (automatic), True or False, not {prepare!r}.")
        if async_claim not in (True, False):
            raise TypeError(f"async_claim is True or False, not {async_claim!r}.")
        self.using = text_of("using", using, may_be_empty=True)
        self.prepare = prepare
        self.async_claim = async_claim
        self.session_variables = _names_of(session_variables)

    @cached_property
    def dialect(self) -> Dialect:
        """What the store knows of this database's vendor; raise StoreError for another one."""
        vendor = connections[self.using].vendor
        try:
            return DIALECTS[vendor]
        except KeyError:
            raise _no_statements_for(vendor) from None

    @property
    def can_prepare(self) -> bool:
        """Whether the driver and its options let the store prepare statements."""
        connection: Any = connections[self.using]
        options = connection.settings_dict["OPTIONS"]
        return (
            connection.Database.__name__ == "psycopg"
            and not options.get("server_side_binding")
            and options.get("prepare_threshold") is None
        )

    @cached_property
    def _execute_prepared(self) -> Callable[..., list[Row] | None] | None:
        """See `prepared.execute`; None where no statement is to be prepared."""
        if self.prepare is False or not self.can_prepare:
            return None
        # Not with this module: psycopg is not there in every project.
        from django_idempotency.stores.database import prepared

        return partial(prepared.execute, insist=self.prepare is True)

    @cached_property
    def _texts(self) -> _Texts:
        """The statements by name and table: that of a place, or None for that of the session."""
        return _Texts(self.dialect, self.session_variables)

    def unsupported(self) -> str | None:
        """Return what this server is that the statements are not for; asks it, if it is MariaDB."""
        return self.dialect.unsupported(connections[self.using])

    def variables_read(self) -> list[str]:
        """Return the variables of a session that the table's policies and defaults read."""
        if self.dialect.VARIABLES is None:
            return []
        return sorted(name for (name,) in self._execute("VARIABLES", {}))

    def may_renew_joined(self, default: str | None = None) -> bool:
        """See `Dialect.may_renew_joined`."""
        options = connections[self.using].settings_dict["OPTIONS"]
        return self.dialect.may_renew_joined(options, self._execute, default)

    def _look(
        self, record_id: UUID, name: str = "LOOK", *, place: str | None = None
    ) -> tuple[Record | None, datetime, str | None]:
        """Return the record, the store's clock, and the place at which it looked."""
        [row] = self._execute(name, {"id": record_id}, place=place)
        *columns, looked_at = row
        return *record_of(columns, looked_at), looked_at

    def _count(self, name: str, parameters: Mapping[str, Any], *, place: str | None = None) -> int:
        """Run a statement and return how many rows it has found or changed."""
        count: int = self._execute(name, parameters, counts=True, place=place)
        return count

    def _execute(
        self,
        name: str,
        parameters: Mapping[str, Any],
        connection: BaseDatabaseWrapper | None = None,
        *,
        counts: bool = False,
        place: str | None = None,
    ) -> Any:
        """
        Run a statement, and return its rows, or how many they are.

        On this thread's `connection`, if the caller has looked it up, and at `place`, or at that of
        the block `at`. A driver's error becomes a StoreError.
        """
        if connection is None:
            connection = connections[self.using]
        if place is None and (here := _here.get()) is not None and here[0] is self:
            place = here[1]
        foreign = connection.in_atomic_block and Block.is_foreign(connection)
        if foreign and (name in _CLAIMS or Block.is_own(connection)):
            raise Block.open_error()
        try:
            if inherited.sessions:
                inherited.refuse(connection)
            if foreign:  # an owner's write must not be part of another's transaction
                with fresh_connection(self.using, self.dialect):
                    return self._send(connections[self.using], name, parameters, counts, place)
            if connection.errors_occurred:
                self._close_if_unusable(connection)
            return self._send(connection, name, parameters, counts, place)
        except Error as error:
            remedy = self._remedy(error, place)
            raise StoreError(
                f"The store could not run its {name} statement on the database "
                f"{self.using!r}: {type(error).__name__}.{remedy}",
                unreachable=is_unreachable(connection, error),
                retry_after=AFTER_SETUP if remedy else 1,
            ) from error

    def _close_if_unusable(self, connection: BaseDatabaseWrapper) -> None:
        if connection.errors_occurred and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()

    def _send(
        self,
        connection: BaseDatabaseWrapper,
        name: str,
        parameters: Mapping[str, Any],
        counts: bool = False,
        place: str | None = None,
        tries: int = _TRIES,
        table: str | None = None,
    ) -> Any:
        """
        Run a statement, prepared where possible; outside a transaction it may be sent again.

        At a `place` it runs as `_send_at` does; else for a `table`, or that of the session (None).

        A statement that met a concurrent change under a strict isolation level has done nothing,
        and is sent again. So is an owner's write whose connection was lost, while the work ran for
        example: it succeeds again under its own token. It takes a fresh connection, since a pool
        may have more dead ones.
        """
        if connection.in_atomic_block:
            tries = 1
        while True:
            tries -= 1
            try:
                if place is not None:
                    return self._send_at(place_of(place), connection, name, parameters, counts)
                if self._execute_prepared is not None:
                    rows = self._execute_prepared(connection, self._texts, table, name, parameters)
                    if rows is not None:
                        return rows
                dialect = self.dialect
                with connection.cursor() as cursor:
                    if not self._is_supported:
                        if (unsupported := dialect.unsupported(connection)) is not None:
                            raise _no_statements_for(unsupported)
                        self._is_supported = True
                    cursor.execute(self._texts[name, table], dialect.adapted(parameters))
                    if counts:
                        return cursor.rowcount
                    if cursor.description:
                        return list(cursor.fetchall())
                    return dialect.written(cursor, name, parameters)
            except (InterfaceError, OperationalError) as error:
                lost = self.dialect.has_server and is_connection_failure(error)
                if lost and tries and name in _OWNERS_WRITES:
                    with fresh_connection(self.using, self.dialect):
                        again = connections[self.using]
                        return self._send(again, name, parameters, counts, place, tries)
                elif not tries or not is_serialization_failure(error):
                    raise

    def _send_at(
        self,
        place: Place,
        connection: BaseDatabaseWrapper,
        name: str,
        parameters: Mapping[str, Any],
        counts: bool,
    ) -> Any:
        """
        Run a statement on the table of the place, and in a session like that of the place.

        An owner's write runs as it is, and again if it has done nothing and the work has left
        another session than it had found. What else is sent there meets a new session.
        """
        send = partial(self._send, connection, name, parameters, counts, tries=1, table=place.table)
        if name in _IN_THEIR_SESSION:
            if done := send():
                return done
            if self._session(connection) == place.session:
                return done
        elif place.is_plain:
            return send()
        begins = connection.get_autocommit() and not connection.in_atomic_block
        with transaction.atomic(self.using) if begins else nullcontext():
            found = self._session(connection)
            if found == place.session:
                return send()
            self._take_on(connection, place)
            done = send()
            if not begins:  # the work goes on
                self._take_on(connection, place._replace(session=found))
            return done

    def _session(self, connection: BaseDatabaseWrapper) -> str:
        """Return the session as a place has it."""
        [(session,)] = self._send(connection, "SESSION", {}, tries=1)
        return str(session)

    def _take_on(self, connection: BaseDatabaseWrapper, place: Place) -> None:
        """Set role and variables until the transaction ends: a pooler hands the session on."""
        names = ["role", *self.session_variables]
        self._send(connection, "TAKE_ON", {"names": names, "values": place.values}, tries=1)

    @contextmanager
    def at(self, place: str | None) -> Iterator[None]:
        """See `BaseStore.at`."""
        before = _here.set((self, place))
        try:
            yield
        finally:
            _here.reset(before)

    def fresh_connection(self) -> AbstractContextManager[None]:
        """See `BaseStore.fresh_connection`; in a transaction it stays on that one's connection."""
        connection = connections[self.using]
        alone = not connection.in_atomic_block or Block.is_foreign(connection)
        if not self.dialect.has_server or not alone:
            return nullcontext()
        return fresh_connection(self.using, self.dialect)

    def working_connection(self) -> AbstractContextManager[None]:
        """See `BaseStore.working_connection`."""
        connection = connections[self.using]
        if connection.connection is None or connection.in_atomic_block:
            return self.fresh_connection()
        return nullcontext() if connection.is_usable() else self.fresh_connection()

    def _remedy(self, error: Error, place: str | None) -> str:
        """Return what to do about a table that is not there, or an old one; "" for other errors."""
        if not is_no_table(error) and not is_no_column(error):
            return ""
        migrate = "manage.py migrate"
        if self.using != DEFAULT_DB_ALIAS:
            migrate += f" --database {self.using}"
        if not apps.is_installed("django_idempotency"):
            return f' Add "django_idempotency" to INSTALLED_APPS, and run {migrate}.'
        which = "is not there" if is_no_table(error) else "is an old one"
        table = "Its table" if place is None else f"Its table {place_of(place).table}"
        return f" {table} {which}: run {migrate}."


def _no_statements_for(server: str) -> StoreError:
    return StoreError(
        f"The database store has no statements for {server}.", retry_after=AFTER_SETUP
    )


class _Texts(dict[tuple[str, "str | None"], str]):
    """Statements by name and table, each made when it is used for the first time."""

    def __init__(self, dialect: Dialect, variables: tuple[str, ...]) -> None:
        super().__init__()
        self._text = partial(dialect.text, variables=variables)

    def __missing__(self, key: tuple[str, str | None]) -> str:
        if len(self) >= _TEXTS:
            self.clear()
        text = self[key] = self._text(*key)
        return text


def _names_of(variables: Any) -> tuple[str, ...]:
    """Return the names of a session's variables; TypeError or ValueError for what is none."""
    if isinstance(variables, str) or not isinstance(variables, Collection):
        raise TypeError(f"session_variables is a list of names, not {variables!r}.")
    for name in variables:
        if not isinstance(name, str) or _VARIABLE.fullmatch(name) is None:
            raise ValueError(f"session_variables: {name!r} names no variable of a session.")
    return tuple(variables)


#: The place of the innermost block `at`, and the store to which it belongs.
_here: ContextVar[tuple[Statements, str | None] | None] = ContextVar(
    "idempotency_place", default=None
)
