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
from django_idempotency.transactions.state import commits_alone

#: What a new session usually has.
_USUAL = {"search_path": '"$user", public', "role": "none"}
_READ = "SELECT name, coalesce(current_setting(name, true), '') FROM unnest(%s::text[]) AS s (name)"
#: A value that is null resets a setting.
_RESET = "SELECT set_config(name, NULL, false) FROM unnest(%s::text[]) AS s (name)"


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
    return _sessions([(it, _settings(it, variables)) for it in found], using)


def _sessions(
    found: Iterable[tuple[BaseDatabaseWrapper, dict[str, str]]], using: str | None
) -> list[Session]:
    sessions = []
    for connection, settings in found:
        carried = {
            name: value
            for name, value in settings.items()
            if name in _USUAL or connection.alias == using
        }
        tenant = getattr(connection, "tenant", None)
        if carried or (tenant is not None and connection.vendor == "postgresql"):
            sessions.append(Session(connection.alias, tenant, carried))
    return sessions


def _settings(connection: BaseDatabaseWrapper, variables: Collection[str]) -> dict[str, str]:
    """Return what the session of a connection has that is unlike a new one; raise SessionLost."""
    if connection.vendor != "postgresql":
        return {}
    if connection.connection is None:
        opening = vars(connection).get("connect")
        return opening.settings if isinstance(opening, _Connect) else {}
    usual = _USUAL | {"role": _role(connection) or "none"}
    try:
        with connection.cursor() as cursor:
            cursor.execute(_READ, [[*_USUAL, *variables]])
            return {name: value for name, value in cursor if value != usual.get(name, "")}
    except Error as error:
        raise _lost(connection, error) from error


def _role(connection: BaseDatabaseWrapper) -> str | None:
    """Return the role that Django gives each new session."""
    role: str | None = connection.settings_dict["OPTIONS"].get("assume_role")
    return role


def let_go(
    going: Iterable[BaseDatabaseWrapper], using: str | None, variables: Collection[str]
) -> list[Session]:
    """
    Close connections, and return those of their sessions that are unlike a new one.

    No pool gets such a session back. Raises SessionLost before any connection is closed.
    """
    found = [(connection, _settings(connection, variables)) for connection in going]
    for connection, settings in found:
        _give_back(connection, settings)
    return _sessions(found, using)


def close_all(variables: Collection[str]) -> None:
    """Close this thread's connections; no pool gets a session back that is unlike a new one."""
    for connection in connections.all(initialized_only=True):
        settings = {}
        if _is_pooled(connection):
            try:
                settings = _settings(connection, variables)
            except SessionLost:
                connection.connection.close()
        _give_back(connection, settings)


def _give_back(connection: Any, settings: dict[str, str]) -> None:
    """Close a connection: others take it from its pool, so what others have set is reset."""
    if _is_pooled(connection) and connection.connection is not None:
        # A pool rolls back what was reset in a transaction.
        clean = commits_alone(connection) and not (settings and _role(connection))
        if clean and settings:
            try:
                with connection.cursor() as cursor:
                    cursor.execute(_RESET, [list(settings)])
            except Error:
                clean = False
        if not clean:  # the pool opens another one
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
    Give this thread's connections such sessions when they are opened again.

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


def drop(sessions: Iterable[Session]) -> None:
    """Let this thread's connections be opened without such sessions."""
    _drop(connections[session.alias] for session in sessions)


def forget(**kwargs: Any) -> None:
    """Let no session go from one request to the next of its thread, or from task to task."""
    if _Connect.any_made:
        _drop(connections.all(initialized_only=True))


def _drop(carrying: Iterable[BaseDatabaseWrapper]) -> None:
    for connection in carrying:
        if isinstance(vars(connection).get("connect"), _Connect):
            del vars(connection)["connect"]


# Before the receivers of the project: their statements would go to the session that is forgotten.
for _signal in (request_started, request_finished):
    _signal.connect(forget)


def _lost(connection: BaseDatabaseWrapper, error: Error) -> SessionLost:
    unreachable = is_unreachable(connection, error)
    return SessionLost("A session could not be read or opened.", unreachable=unreachable)
