"""Running the database store's statements: on which connection, and what becomes of an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
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
)
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.exceptions import StoreError
from django_idempotency.exceptions.base import AFTER_SETUP
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import inherited
from django_idempotency.stores.database.atomic import Block
from django_idempotency.stores.database.dialect import Dialect, Row
from django_idempotency.stores.database.errors import (
    is_connection_failure,
    is_no_column,
    is_no_table,
    is_serialization_failure,
    is_unreachable,
)
from django_idempotency.stores.database.fresh import fresh_connection
from django_idempotency.stores.database.mariadb import MariaDB
from django_idempotency.stores.database.postgresql import PostgreSQL
from django_idempotency.stores.database.rows import record_of
from django_idempotency.stores.database.sqlite import SQLite

__all__ = ["DIALECTS", "Statements"]

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
_OWNERS_WRITES = ("COMPLETE", "FAIL", "RELEASE")


class Statements(BaseStore):
    """The statements of one alias's vendor, sent on this thread's write connection."""

    using: str

    def __init__(
        self, *, using: str = "default", prepare: bool | None = None, async_claim: bool = False
    ) -> None:
        """
        Take the alias of the database, and what the store may do on PostgreSQL.

        With `async_claim` the server answers a claim in mode ``joined`` before it is on its disk.
        """
        if prepare not in (None, True, False):
            raise TypeError(f"prepare is None (automatic), True or False, not {prepare!r}.")
        if async_claim not in (True, False):
            raise TypeError(f"async_claim is True or False, not {async_claim!r}.")
        self.using = using
        self.prepare = prepare
        self.async_claim = async_claim

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

    def unsupported(self) -> str | None:
        """Return what this server is that the statements are not for; asks it, if it is MariaDB."""
        return self.dialect.unsupported(connections[self.using])

    def may_renew_joined(self, default: str | None = None) -> bool:
        """See `Dialect.may_renew_joined`."""
        options = connections[self.using].settings_dict["OPTIONS"]
        return self.dialect.may_renew_joined(options, self._execute, default)

    def _look(self, record_id: UUID, name: str = "LOOK") -> tuple[Record | None, datetime]:
        [row] = self._execute(name, {"id": record_id})
        return record_of(row)

    def _count(self, name: str, parameters: Mapping[str, Any]) -> int:
        """Run a statement and return how many rows it has found or changed."""
        count: int = self._execute(name, parameters, counts=True)
        return count

    def _execute(
        self,
        name: str,
        parameters: Mapping[str, Any],
        connection: BaseDatabaseWrapper | None = None,
        *,
        counts: bool = False,
    ) -> Any:
        """
        Run a statement, and return its rows, or how many they are.

        On this thread's `connection`, if the caller has looked it up. A driver's error becomes a
        StoreError.
        """
        if connection is None:
            connection = connections[self.using]
        foreign = connection.in_atomic_block and Block.is_foreign(connection)
        if foreign and name in _CLAIMS:
            raise Block.open_error()
        try:
            if inherited.sessions:
                inherited.refuse(connection)
            if foreign:  # an owner's write must not be part of another's transaction
                with fresh_connection(self.using, self.dialect):
                    return self._send(connections[self.using], name, parameters, counts)
            if connection.errors_occurred and not connection.in_atomic_block:
                connection.close_if_unusable_or_obsolete()
            return self._send(connection, name, parameters, counts)
        except Error as error:
            remedy = self._remedy(error)
            raise StoreError(
                f"The store could not run its {name} statement on the database "
                f"{self.using!r}: {type(error).__name__}.{remedy}",
                unreachable=is_unreachable(connection, error),
                retry_after=AFTER_SETUP if remedy else 1,
            ) from error

    def _send(
        self,
        connection: BaseDatabaseWrapper,
        name: str,
        parameters: Mapping[str, Any],
        counts: bool,
        tries: int = _TRIES,
    ) -> Any:
        """
        Run a statement, prepared where possible; outside a transaction it may be sent again.

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
                if self._execute_prepared is not None:
                    rows = self._execute_prepared(connection, self.dialect, name, parameters)
                    if rows is not None:
                        return rows
                return self._send_unprepared(connection, name, parameters, counts)
            except (InterfaceError, OperationalError) as error:
                lost = self.dialect.has_server and is_connection_failure(error)
                if lost and tries and name in _OWNERS_WRITES:
                    connection.close()
                    with fresh_connection(self.using, self.dialect):
                        return self._send(connections[self.using], name, parameters, counts, tries)
                elif not tries or not is_serialization_failure(error):
                    raise

    def _send_unprepared(
        self,
        connection: BaseDatabaseWrapper,
        name: str,
        parameters: Mapping[str, Any],
        counts: bool,
    ) -> Any:
        dialect = self.dialect
        with connection.cursor() as cursor:
            if (unsupported := dialect.unsupported(connection)) is not None:
                raise _no_statements_for(unsupported)
            cursor.execute(getattr(dialect, name), dialect.adapted(parameters))
            return cursor.rowcount if counts else dialect.rows(cursor, name, parameters)

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

    def _remedy(self, error: Error) -> str:
        """Return what to do about a table that is not there, or an old one; "" for other errors."""
        if not is_no_table(error) and not is_no_column(error):
            return ""
        migrate = "manage.py migrate"
        if self.using != DEFAULT_DB_ALIAS:
            migrate += f" --database {self.using}"
        if not apps.is_installed("django_idempotency"):
            return f' Add "django_idempotency" to INSTALLED_APPS, and run {migrate}.'
        which = "is not there" if is_no_table(error) else "is an old one"
        return f" Its table {which}: run {migrate}."


def _no_statements_for(server: str) -> StoreError:
    return StoreError(
        f"The database store has no statements for {server}.", retry_after=AFTER_SETUP
    )
