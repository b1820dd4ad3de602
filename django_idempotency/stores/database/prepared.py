"""
Hot statements, prepared in the session of Django's own connection (PostgreSQL, psycopg 3).

A statement is prepared when it is used for the third time on a connection. That is never to cost a
transaction: the error of a statement that is not prepared would abort it, and lose its work. So
nothing is prepared behind a pooler that gives each transaction another session, and in a
transaction a prepared statement runs only as the first one, where its failure would lose nothing,
or right after another one has shown that the session still has its prepared statements.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
import uuid
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from django.apps import apps
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import Cursor, DatabaseWrapper
from psycopg import abc, errors, generators, pq
from psycopg.adapt import Transformer

from django_idempotency.stores.database.atomic import SAVEPOINT
from django_idempotency.stores.database.dialect import Row

__all__ = ["execute"]

#: How often a statement is used on a connection before it is prepared there.
USES_BEFORE = 2
#: How often it is used before it is prepared anew. A plan that was made for a small table reads all
#: of it, and goes on to do so when it has grown, until it is analyzed.
USES_OF_A_PLAN = 500
#: From libpq 17 on a statement is let go of by the protocol. PgBouncer does not know DEALLOCATE.
_MAY_CLOSE = psycopg.capabilities.has_send_close_prepared()

#: What opens an attempt: anything may have been done before it in its transaction.
_OPENS = frozenset(("CLAIM", "CLAIM_ASYNC", "LOOK", "SINGLE_LOCK"))
#: These follow directly.
_FOLLOWS = frozenset(("LOOK_AGAIN", "RECLAIM", "RECLAIM_ASYNC"))
#: These commit with the work. They follow a claim on the same connection.
_ENDS = frozenset(("COMPLETE", "SINGLE_INSERT", "SINGLE_UPDATE"))
_HOT = _OPENS | _FOLLOWS | _ENDS
#: What is sent along with a statement that opens its transaction, with the same parameters.
_TOGETHER = {"SINGLE_LOCK": "LOOK_AGAIN"} if psycopg.capabilities.has_pipeline() else {}

#: SQLSTATEs: it is not prepared (any more), its name is taken, its result has other types now.
_GONE, _TAKEN, _CHANGED = "26000", "42P05", "0A000"

_SET_SAVEPOINT = f"SAVEPOINT {SAVEPOINT}".encode()
_IDLE = pq.TransactionStatus.IDLE
_BAD = pq.ConnStatus.BAD
_SUCCESS = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_BINARY = pq.Format.BINARY
_EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def execute(
    connection: BaseDatabaseWrapper,
    name: str,
    sql: str,
    parameters: Mapping[str, Any],
    *,
    insist: bool = False,
) -> list[Row] | None:
    """
    Run a prepared statement and return its rows; None where a cursor is to run it instead.

    SINGLE_LOCK that opens a transaction may bring the rows of LOOK_AGAIN, too: both take one round
    trip with the BEGIN before them and the SAVEPOINT of the work after them. Errors are Django's,
    as those of a cursor are. With `insist` poolers are not looked for.
    """
    if name not in _HOT or not _may_pass_cursor(connection):
        return None
    driver: psycopg.Connection[Any] = connection.connection
    if (session := _sessions.get(driver)) is None:
        session = _sessions[driver] = _Session(Transformer(driver.adapters))
    is_first = driver.pgconn.transaction_status == _IDLE
    if not session.may_run(name, is_first):
        return None
    connection.validate_no_broken_transaction()
    with connection.wrap_database_errors:
        try:
            if is_first and not driver.autocommit:
                if name in _TOGETHER and session.knows(name, _TOGETHER[name], insist=insist):
                    return session.open_with(driver, (name, _TOGETHER[name]), parameters)
                _ask(driver, driver.pgconn.send_query, b"BEGIN")  # as psycopg does
            if not session.has(driver, name, sql, insist):
                return None
            return session.run(driver, name, parameters)
        except psycopg.Error as error:
            if error.sqlstate not in (_GONE, _TAKEN, _CHANGED):
                raise
            session.forget(lost=error.sqlstate != _CHANGED)
            if not is_first:
                raise
            if driver.pgconn.transaction_status != _IDLE:
                _ask(driver, driver.pgconn.send_query, b"ROLLBACK")
            return None  # nothing has been done, and a cursor runs it


def _may_pass_cursor(connection: Any) -> bool:
    """
    Return whether the connection's cursors are Django's own, and nobody watches them.

    The connection is opened before, as a cursor would.
    """
    if connection.health_check_enabled:
        connection.close_if_health_check_failed()
    connection.ensure_connection()
    connection.validate_thread_sharing()
    driver, wrapper = connection.connection, connection.__class__
    return (
        apps.ready
        and not connection.execute_wrappers
        and not connection.queries_logged
        and _makes_plain_cursors(wrapper)
        and vars(connection).keys().isdisjoint(_CURSOR_MAKERS)
        and type(driver) is psycopg.Connection
        and driver.cursor_factory is _CURSOR  # neither server-side binding nor a tracer's
        and driver.prepare_threshold is None  # psycopg prepares nothing, and deallocates nothing
        and not driver.closed  # by the work, or by the server: a cursor tells it as ever
        and driver.pgconn.pipeline_status == pq.PipelineStatus.OFF
        and driver.pgconn.parameter_status(b"client_encoding") == b"UTF8"  # of our parameters
        and (driver.pgconn.transaction_status != _IDLE or driver.autocommit or _is_plain(driver))
    )


_CURSOR: Any = Cursor
_CURSOR_MAKERS = ("_cursor", "create_cursor", "cursor", "make_cursor")


@cache
def _makes_plain_cursors(wrapper: Hashable) -> bool:
    """Return whether a class of connections leaves cursors alone; one of tenants may not."""
    return all(
        getattr(wrapper, maker) is getattr(DatabaseWrapper, maker) for maker in _CURSOR_MAKERS
    )


def _is_plain(driver: psycopg.Connection[Any]) -> bool:
    """Return whether a transaction of this connection begins with BEGIN and no more."""
    return driver.isolation_level is None and driver.read_only is None and driver.deferrable is None


def _ask(driver: psycopg.Connection[Any], send: Callable[..., None], *arguments: Any) -> Any:
    """
    Send something and return its result.

    It waits as psycopg does: other threads and greenlets go on, and Ctrl-C cancels the statement.
    """
    with driver.lock:
        send(*arguments)
        result = driver.wait(generators.execute(driver.pgconn))[-1]
    if result.status not in _SUCCESS:
        raise errors.error_from_result(result, encoding="utf-8")
    return result


def _ask_together(
    driver: psycopg.Connection[Any], sends: list[Callable[[], None]]
) -> list[pq.abc.PGresult]:
    """Send all of it, wait once, and return the result of each."""
    pgconn = driver.pgconn
    with driver.lock:
        pgconn.enter_pipeline_mode()
        try:
            results = driver.wait(_results(pgconn, [*sends, pgconn.pipeline_sync]))
            if pgconn.status != _BAD:
                pgconn.exit_pipeline_mode()
        except BaseException:  # what is still to come would be taken for the next answer
            pgconn.finish()
            raise
    for result in results:
        if result.status not in _SUCCESS:
            raise errors.error_from_result(result, encoding="utf-8")
    return results


def _results(
    pgconn: pq.abc.PGconn, sends: list[Callable[[], None]]
) -> abc.PQGen[list[pq.abc.PGresult]]:
    for send in sends:
        send()
    yield from generators.send(pgconn)
    results: list[pq.abc.PGresult] = []
    for _ in sends:
        try:
            results += yield from generators.fetch_many(pgconn)
        except psycopg.Error:
            if all(result.status in _SUCCESS for result in results):
                raise
            return results  # one of them says why the server has ended the session
    return results[:-1]  # without that of the synchronization


def _server_pid(driver: psycopg.Connection[Any]) -> int:
    return int(_ask(driver, driver.pgconn.send_query, b"SELECT pg_backend_pid()").get_value(0, 0))


class _Session:
    """What is prepared in the session of one connection of psycopg."""

    def __init__(self, transformer: abc.Transformer) -> None:
        # It knows the loaders of rows, and not the connection: that would keep it alive.
        self._transformer = transformer
        #: How often each statement was used that is not prepared.
        self._uses: dict[str, int] = {}
        self._prepared: dict[str, _Prepared] = {}
        # Nobody else's names, even where a session goes from one client to the next.
        self._names = map(f"idempotency_{uuid.uuid4().hex[:12]}_{{}}".format, itertools.count())
        #: None until the server has been asked.
        self._is_ours: bool | None = None
        #: The last statement of ours has run prepared, and was no completion.
        self._is_proven = False

    def may_run(self, name: str, is_first: bool) -> bool:
        """Count a use, and return whether the statement may be run prepared at this place."""
        is_proven, self._is_proven = self._is_proven, False
        if self._is_ours is False:
            return False
        if name not in self._prepared:
            uses = self._uses[name] = self._uses.get(name, 0) + 1
            if uses <= USES_BEFORE:
                return False
        return is_first or (is_proven and name not in _OPENS)

    def has(self, driver: psycopg.Connection[Any], name: str, sql: str, insist: bool) -> bool:
        """Prepare the statement unless it is; return False where sessions are a pooler's."""
        if (known := self._prepared.get(name)) is not None:
            known.uses += 1
            if known.uses < USES_OF_A_PLAN or (insist and not _MAY_CLOSE):
                return True
            del self._prepared[name]
            if _MAY_CLOSE:
                _ask(driver, driver.pgconn.send_close_prepared, known.name)
            else:
                _ask(driver, driver.pgconn.send_query, b"DEALLOCATE " + known.name)
        if self._is_ours is None:
            # PgBouncer and its like make up the number that they tell a client.
            self._is_ours = insist or _server_pid(driver) == driver.pgconn.backend_pid
        if not self._is_ours:
            return False
        statement = _statement(sql)
        prepared = _Prepared(next(self._names).encode(), statement)
        _ask(driver, driver.pgconn.send_prepare, prepared.name, statement.sql, statement.types)
        self._prepared[name] = prepared
        return True

    def knows(self, *names: str, insist: bool) -> bool:
        """Return whether the statements are prepared, and none is to be prepared anew."""
        uses = math.inf if insist and not _MAY_CLOSE else USES_OF_A_PLAN - 1
        return all(
            (known := self._prepared.get(name)) is not None and known.uses < uses for name in names
        )

    def run(
        self, driver: psycopg.Connection[Any], name: str, parameters: Mapping[str, Any]
    ) -> list[Row]:
        """Run a statement that is prepared."""
        result = _ask(driver, driver.pgconn.send_query_prepared, *self._bound(name, parameters))
        self._is_proven = name not in _ENDS
        return self._rows(driver, result)

    def open_with(
        self,
        driver: psycopg.Connection[Any],
        names: tuple[str, ...],
        parameters: Mapping[str, Any],
    ) -> list[Row]:
        """Begin a transaction with these statements and a SAVEPOINT; return the rows of all."""
        pgconn = driver.pgconn
        sends: list[Callable[[], None]] = [partial(pgconn.send_query_params, b"BEGIN", None)]
        for name in names:
            self._prepared[name].uses += 1
            sends.append(partial(pgconn.send_query_prepared, *self._bound(name, parameters)))
        sends.append(partial(pgconn.send_query_params, _SET_SAVEPOINT, None))
        _, *results, _ = _ask_together(driver, sends)
        self._is_proven = True
        return [row for result in results for row in self._rows(driver, result)]

    def _bound(self, name: str, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments with which the driver sends a statement."""
        prepared = self._prepared[name]
        values = [
            None if (value := parameters[parameter]) is None else encode(value)
            for parameter, encode in prepared.statement.parameters
        ]
        return prepared.name, values, prepared.statement.formats, _BINARY

    def _rows(self, driver: psycopg.Connection[Any], result: Any) -> list[Row]:
        with driver.lock:  # threads that share a connection must not load each other's rows
            self._transformer.set_pgresult(result)
            rows: list[Row] = self._transformer.load_rows(0, result.ntuples, tuple)
            self._transformer.set_pgresult(None)
        return rows

    def forget(self, *, lost: bool) -> None:
        """Prepare anew what is used again; nothing, if the session has `lost` its statements."""
        self._uses.clear()
        self._prepared.clear()
        self._is_proven = False
        if lost:  # by a pooler or a DISCARD ALL, and it may do so again
            self._is_ours = False


#: By connection of psycopg: a pool hands it from thread to thread, and a wrapper has many.
_sessions: WeakKeyDictionary[psycopg.Connection[Any], _Session] = WeakKeyDictionary()


class _Statement(NamedTuple):
    """A statement as the server takes it, and how each of its parameters is sent."""

    sql: bytes
    parameters: list[tuple[str, Callable[[Any], bytes]]]
    types: list[int]
    formats: list[int]


@dataclass
class _Prepared:
    """A statement that is prepared in a session, under a name."""

    name: bytes
    statement: _Statement
    uses: int = 0


@cache
def _statement(sql: str) -> _Statement:
    names = list(dict.fromkeys(_PARAMETER.findall(sql)))
    numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
    kinds = [_KINDS[name] for name in names]
    return _Statement(
        numbered.replace("%%", "%").encode(),
        [(name, encode) for name, (_, encode) in zip(names, kinds, strict=True)],
        [_type(kind) for kind, _ in kinds],
        [_BINARY] * len(names),
    )


_PARAMETER = re.compile(r"%\((\w+)\)s")


def _type(kind: str) -> int:
    """Return the number of a type of PostgreSQL's, or of an array of it."""
    info = psycopg.adapters.types[kind.removesuffix("[]")]
    return info.array_oid if kind.endswith("[]") else info.oid


# How PostgreSQL takes each parameter: big-endian, times as microseconds.


def _text(value: str) -> bytes:
    if "\0" in value:  # as psycopg says it, and no transaction is aborted
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return value.encode()


def _interval(value: timedelta) -> bytes:
    return struct.pack(">qii", value // _MICROSECOND, 0, 0)


def _time(value: datetime) -> bytes:
    return struct.pack(">q", (value - _EPOCH) // _MICROSECOND)


def _bytes_array(values: list[bytes]) -> bytes:
    """Return a one-dimensional array without NULLs: its head, then each length and element."""
    if not values:
        return struct.pack(">iiI", 0, 0, _type("bytea"))
    head = struct.pack(">iiIii", 1, 0, _type("bytea"), len(values), 1)
    return head + b"".join(struct.pack(">i", len(value)) + value for value in values)


_UUID: tuple[str, Callable[[Any], bytes]] = ("uuid", attrgetter("bytes"))
_TEXT: tuple[str, Callable[[Any], bytes]] = ("text", _text)
_BYTES: tuple[str, Callable[[Any], bytes]] = ("bytea", bytes)
_BOOLEAN: tuple[str, Callable[[Any], bytes]] = ("bool", {True: b"\1", False: b"\0"}.__getitem__)
_INTERVAL: tuple[str, Callable[[Any], bytes]] = ("interval", _interval)

#: The parameters of the hot statements: the type of each, and its bytes.
_KINDS: dict[str, tuple[str, Callable[[Any], bytes]]] = {
    "claimed_at": ("timestamptz", _time),
    "epoch": ("int8", struct.Struct(">q").pack),
    "error": _TEXT,
    "fingerprint": _BYTES,
    "fingerprints": ("bytea[]", _bytes_array),
    "id": _UUID,
    "key": _TEXT,
    "lease": _INTERVAL,
    "lifetime": _INTERVAL,
    "operation": _TEXT,
    "result": _BYTES,
    "retention": _INTERVAL,
    "scope": _TEXT,
    "seen_state": _TEXT,
    "seen_token": _UUID,
    "state": _TEXT,
    "take_over": _BOOLEAN,
    "token": _UUID,
}
