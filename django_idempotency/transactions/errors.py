"""What the errors of database drivers mean, by SQLSTATE or by MariaDB's number."""

from __future__ import annotations

import re

from django.db import DatabaseError, Error, InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper


def sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE that the driver gave, if any: psycopg 3, or psycopg2."""
    while error is not None:
        if state := getattr(error, "sqlstate", None) or getattr(error, "pgcode", None):
            return str(state)
        error = error.__cause__
    return None


def error_number(error: BaseException | None) -> int | None:
    """Return the number that MariaDB gave, if any."""
    while error is not None:
        if isinstance(error, DatabaseError) and error.args and isinstance(error.args[0], int):
            return error.args[0]
        error = error.__cause__
    return None


def is_serialization_failure(error: BaseException) -> bool:
    # A deadlock is one, too.
    return is_newer(error) or sqlstate(error) == "40P01" or error_number(error) == 1213


def is_newer(error: BaseException) -> bool:
    """Whether a row is newer than the transaction's snapshot (`innodb_snapshot_isolation`)."""
    return sqlstate(error) == "40001" or error_number(error) == 1020


def is_raised_by_server(error: BaseException) -> bool:
    """Whether PL/pgSQL raised it; psycopg2 has such an error as an InternalError."""
    return str(sqlstate(error)).startswith("P0")


def is_duplicate(error: BaseException) -> bool:
    """Return whether another session has inserted the row (MariaDB)."""
    return error_number(error) == 1062


def is_held(error: BaseException) -> bool:
    """Return whether another session holds the row (MariaDB)."""
    return error_number(error) == 1205


def is_no_table(error: BaseException) -> bool:
    """Whether the statement's table has not been created."""
    if sqlstate(error) == "42P01" or error_number(error) == 1146:
        return True
    return isinstance(error, OperationalError) and "no such table" in str(error)


def is_no_column(error: BaseException) -> bool:
    """Whether the statement's table lacks a column: a migration is pending."""
    if sqlstate(error) == "42703" or error_number(error) == 1054:
        return True
    said = str(error)
    return isinstance(error, OperationalError) and (
        "no such column" in said or "has no column named" in said
    )


def is_connection_failure(error: DatabaseError | InterfaceError) -> bool:
    if (number := error_number(error)) is not None:
        return 2000 <= number < 3000 or number == 4031  # the client's own; killed while idle
    state = sqlstate(error)
    return state is None or state.startswith(("08", "57P"))


def is_unreachable(connection: BaseDatabaseWrapper, error: BaseException) -> bool:
    """
    Whether a call met no server: no session could be opened, or the session was lost.

    A server that refuses a session has been met: it has too many, or knows no such database or
    user. So has the one of a pool whose connections are all in use.
    """
    if connection.vendor == "sqlite":
        return connection.connection is None
    if not isinstance(error, (InterfaceError, OperationalError)):
        return False
    if connection.connection is not None or connection.vendor == "mysql":
        return is_connection_failure(error)
    if type(error.__cause__).__module__.startswith("psycopg_pool"):
        return not _is_reachable(connection)
    return _REFUSAL.search(str(error)) is None


def _is_reachable(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the server of a pool answers to a connection past the pool."""
    probe = connection.copy()
    options = {"connect_timeout": _PROBE_SECONDS, **connection.settings_dict["OPTIONS"]}
    options.pop("pool", None)
    probe.settings_dict = {**connection.settings_dict, "OPTIONS": options}
    try:
        probe.ensure_connection()
    except Error as error:
        return not is_unreachable(probe, error)
    finally:
        probe.close()
    return True


#: Seconds for a server to accept a connection past its pool.
_PROBE_SECONDS = 5
#: What libpq reports of an answer of the server's: a severity, in any language, and two spaces.
_REFUSAL = re.compile(r"(?:^|: )[^\s:][^\n:]*:  \S")
