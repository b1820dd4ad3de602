"""The sessions of one thread's connections, carried to those of another (R98)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from django.core.signals import request_finished, request_started
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.exceptions.base import SessionLost
from django_idempotency.stores.database.postgresql import PostgreSQL
from django_idempotency.transactions.errors import is_unreachable

#: What a new session usually has.
_USUAL = {"search_path": '"$user", public', "role": "none"}
_READ = "SELECT name, coalesce(current_setting(name, true), '') FROM unnest(%s::text[]) AS s (name)"
#: Reads the settings and resets them: a value that is null does.
_TAKE = """
SELECT name, value, CASE WHEN value <> '' THEN set_config(name, NULL, false) END
  FROM (SELECT name, coalesce(current_setting(name, true), '') AS value
          FROM unnest(%s::text[]) AS s (name) OFFSET 0) AS settings
"""


class Session(NamedTuple):
    """What others have told a connection to PostgreSQL: whose rows its statements are about."""

    alias: str
    #: That of django-tenants and its like, which tell it to each cursor.
    tenant: Any
    settings: dict[str, str]


def sessions_here(using: str | None, variables: Collection[str]) -> list[Session]:
    """
    Return the sessions of this thread that are unlike a new one; `variables` are of alias `using`.

    One round trip for each connection that is open; another one has what it is to be opened with.
    Raises SessionLost.
    """
    found = connections.all(initialized_only=True)
    return [it for it in (_session(x, using, variables, _READ) for x in found) if it is not None]


def _session(
    connection: BaseDatabaseWrapper, using: str | None, variables: Collection[str], text: str
) -> Session | None:
    if connection.vendor != "postgresql":
        return None
    settings = _settings(connection, [*_USUAL, *variables], text)
    if connection.alias != using:
        settings = {name: value for name, value in settings.items() if name in _USUAL}
    tenant = getattr(connection, "tenant", None)
    return None if tenant is None and not settings else Session(connection.alias, tenant, settings)


def _settings(connection: BaseDatabaseWrapper, names: list[str], text: str) -> dict[str, str]:
    if connection.connection is None:
        opening = vars(connection).get("connect")
        return opening.settings if isinstance(opening, _Connect) else {}
    try:
        with connection.cursor() as cursor:
            cursor.execute(text, [names])
            return {row[0]: row[1] for row in cursor if row[1] != _USUAL.get(row[0], "")}
    except Error as error:
        raise _lost(connection, error) from error


def let_go(
    going: Iterable[BaseDatabaseWrapper], using: str | None, variables: Collection[str]
) -> list[Session]:
    """
    Close connections, and return those of their sessions that are unlike a new one.

    One that goes back to its pool has a session like a new one: others take it from there. Raises
    SessionLost.
    """
    found = []
    for connection in going:
        text = _TAKE if _is_pooled(connection) else _READ
        session = _session(connection, using, variables, text)
        if session is not None:
            found.append(session)
        connection.close()
    return found


def close_all(using: str | None, variables: Collection[str]) -> None:
    """Close this thread's connections; a pool gets none back whose session cannot be reset."""
    for connection in connections.all(initialized_only=True):
        if _is_pooled(connection) and connection.connection is not None:
            try:
                if connection.autocommit:  # or else the pool rolls back what resets it
                    let_go([connection], using, variables)
            except SessionLost:
                pass
            if connection.connection is not None:
                connection.connection.close()
        connection.close()


def _is_pooled(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.settings_dict["OPTIONS"].get("pool"))


def carry(sessions: Collection[Session]) -> None:
    """Open this thread's connections with such sessions; raise SessionLost."""
    carry_later(sessions)
    for session in sessions:
        connection = connections[session.alias]
        try:
            if session.settings:
                connection.ensure_connection()
        except Error as error:
            raise _lost(connection, error) from error


def carry_later(sessions: Collection[Session]) -> None:
    """
    Give this thread's connections such sessions when they are opened again, until `forget`.

    One that is open stays as it is: whoever has opened it meanwhile has got the session.
    """
    for alias, tenant, settings in sessions:
        connection: Any = connections[alias]
        if tenant is not None:
            connection.set_tenant(tenant)
        if settings and connection.connection is None:
            connection.connect = _Connect(connection, settings)


class _Connect:
    """Opens a connection, once, with settings of its session; for its attribute `connect`."""

    #: Whether there was ever one in this process: in most there is none to forget.
    any_made = False

    def __init__(self, connection: Any, settings: dict[str, str]) -> None:
        _Connect.any_made = True
        self._connection = connection
        self.settings = settings

    def __call__(self) -> None:
        connection = self._connection
        type(connection).connect(connection)
        try:
            with connection.cursor() as cursor:
                names, values = list(self.settings), list(self.settings.values())
                cursor.execute(PostgreSQL.RESTORE, {"names": names, "values": values})
        except BaseException:
            connection.close()  # a statement would go to another schema
            raise
        del connection.connect


def forget(**kwargs: Any) -> None:
    """Let no session go from one request to the next of its thread."""
    if not _Connect.any_made:
        return
    for connection in connections.all(initialized_only=True):
        if isinstance(vars(connection).get("connect"), _Connect):
            del vars(connection)["connect"]


# Before the receivers of the project: their statements would go to the session that is forgotten.
for _signal in (request_started, request_finished):
    _signal.connect(forget)


def _lost(connection: BaseDatabaseWrapper, error: Error) -> SessionLost:
    unreachable = is_unreachable(connection, error)
    return SessionLost("A session could not be read or opened.", unreachable=unreachable)
