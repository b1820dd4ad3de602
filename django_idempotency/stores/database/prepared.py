"""
Hot statements, prepared in the session of Django's own connection (PostgreSQL, psycopg 3).

A statement is prepared when it is used for the third time on a connection. That is never to cost a
transaction: the error of a statement that is not prepared would abort it, and lose its work. So
nothing is prepared behind a pooler that gives each transaction another session, and in a
transaction a prepared statement runs only as the first one, where its failure would lose nothing,
or right after another one has shown that the session still has its prepared statements.
"""

from __future__ import annotations

import _thread
import itertools
import math
import re
import struct
import uuid
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache, lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from django.apps import apps
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import Cursor, DatabaseWrapper
from psycopg import abc, errors, generators, pq
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.types.bool import BoolBinaryLoader
from psycopg.types.datetime import TimestamptzBinaryLoader
from psycopg.types.numeric import Int4BinaryLoader, Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader, TextBinaryLoader
from psycopg.types.uuid import UUIDBinaryLoader

from django_idempotency.records import NAMED
from django_idempotency.stores.database.dialect import Row
from django_idempotency.transactions.block import SAVEPOINT, Block

#: How often a statement is used on a connection before it is prepared there.
USES_BEFORE = 2
#: How often it is used before it is prepared anew. A plan that was made for a small table reads all
#: of it, and goes on to do so when it has grown, until it is analyzed.
USES_OF_A_PLAN = 500
#: How many statements a session has prepared: those of many schemas would fill the server's memory.
PREPARED_AT_MOST = 64
_COUNTED_AT_MOST = 256
#: From libpq 17 on a statement is let go of by the protocol. PgBouncer does not know DEALLOCATE.
_MAY_CLOSE = psycopg.capabilities.has_send_close_prepared()

#: What opens an attempt: anything may have been done before it in its transaction.
_OPENS = frozenset(("CLAIM", "CLAIM_ASYNC", "LOOK", "SINGLE_LOCK"))
#: These follow directly.
_FOLLOWS = frozenset(("LOOK_AGAIN", "RECLAIM", "RECLAIM_ASYNC"))
#: These commit with the work. They follow a claim on the same connection.
_ENDS = frozenset(("COMPLETE", "SINGLE_INSERT", "SINGLE_UPDATE"))
#: This is the last statement of a step's transaction, or commits by itself.
_NOTES = frozenset(("NOTE",))
_HOT = _OPENS | _FOLLOWS | _ENDS | _NOTES
#: What runs in their place where it is prepared.
_PREPARED_AS = {"CLAIM": "CLAIM_OR_LOOK", "CLAIM_ASYNC": "CLAIM_OR_LOOK_ASYNC"}
_HAS_PIPELINE = psycopg.capabilities.has_pipeline()

#: SQLSTATEs: it is not prepared (any more), its name is taken, its result has other types now.
_GONE, _TAKEN, _CHANGED = "26000", "42P05", "0A000"

_SET_SAVEPOINT = f"SAVEPOINT {SAVEPOINT}".encode()
#: Around a completion that raises where it writes nothing, so that no COMMIT follows it.
_BEFORE_COMPLETION = b"SAVEPOINT idempotency_completion"
_UNDO_COMPLETION = b"ROLLBACK TO SAVEPOINT idempotency_completion"
_WRITES_NOTHING = "22012"
_IDLE = pq.TransactionStatus.IDLE
_BAD = pq.ConnStatus.BAD
_PIPELINE_OFF = pq.PipelineStatus.OFF
_SUCCESS = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_BINARY = pq.Format.BINARY
_EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def execute(
    connection: BaseDatabaseWrapper,
    texts: Mapping[tuple[str, str | None], str],
    table: str | None,
    name: str,
    parameters: Mapping[str, Any],
    *,
    insist: bool = False,
) -> list[Row] | None:
    """
    Run a statement prepared and return its rows; None where a cursor is to run it instead.

    `texts` has it for `table`, which None leaves to the search path: PostgreSQL plans it anew when
    that has changed.

    SINGLE_LOCK that opens a transaction may bring the rows of LOOK_AGAIN, too: both take one round
    trip with the BEGIN before them and the SAVEPOINT of the work after them. A completion that is
    the last statement of its transaction takes one with its COMMIT: see `Block.closing`. Errors are
    Django's, as those of a cursor are. With `insist` poolers are not looked for.
    """
    if name not in _HOT or not _may_pass_cursor(connection):
        return None
    driver: psycopg.Connection[Any] = connection.connection
    if (session := _sessions.get(driver)) is None:
        session = _sessions[driver] = _Session()
    with driver.lock:  # threads that share a connection must not take each other's answers
        is_first = driver.pgconn.transaction_status == _IDLE
        begins = is_first and not driver.autocommit
        if begins and not _begins_plainly(driver):
            return None
        closing = _closing(connection, parameters["token"]) if name in _ENDS else None
        wanted = name if closing is None else f"{name}_OR_RAISE"
        text = texts[_PREPARED_AS.get(name, wanted), table]
        if not session.may_run(name, text, is_first):
            return None
        try:
            if begins:
                if name == "SINGLE_LOCK":
                    together = (text, texts["LOOK_AGAIN", table])
                    if session.may_open(together, insist):
                        return session.open_single(driver, together, parameters)
                _ask(driver, driver.pgconn.send_query, b"BEGIN")  # as psycopg does
            prepared = session.prepare(driver, text, insist)
            if prepared is None:
                return None
            if closing is not None:
                return session.run_and_commit(driver, prepared, parameters, closing)
            return session.run(driver, name, prepared, parameters)
        except psycopg.Error as error:
            with connection.wrap_database_errors:
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
    if connection.connection is None:
        connection.ensure_connection()
    if connection._thread_ident != _thread.get_ident():
        connection.validate_thread_sharing()
    driver = connection.connection
    return (
        apps.ready
        and not connection.needs_rollback  # a cursor tells it
        and not connection.execute_wrappers
        and not connection.queries_logged
        and _has_djangos(connection, _CURSOR_MAKERS)
        and type(driver) is psycopg.Connection
        and driver.cursor_factory is _CURSOR  # neither server-side binding nor a tracer's
        and driver.prepare_threshold is None  # psycopg prepares nothing, and deallocates nothing
        and driver.pgconn.status != _BAD  # by the work, or by the server: a cursor tells it as ever
        and driver.pgconn.pipeline_status == _PIPELINE_OFF
        and driver.pgconn.parameter_status(b"client_encoding") == b"UTF8"  # of our parameters
    )


_CURSOR: Any = Cursor
_CURSOR_MAKERS = frozenset(("_cursor", "create_cursor", "cursor", "make_cursor"))
_COMMITS = frozenset(("_commit", "commit"))


def _has_djangos(connection: Any, methods: frozenset[str]) -> bool:
    """Return whether these methods of the connection are Django's own, and not patched."""
    return not connection.__dict__.keys() & methods and _inherits(connection.__class__, methods)


@cache
def _inherits(wrapper: Hashable, methods: frozenset[str]) -> bool:
    """Return whether a class of connections leaves the methods alone; one of tenants may not."""
    return all(getattr(wrapper, name) is getattr(DatabaseWrapper, name) for name in methods)


def _closing(connection: Any, token: uuid.UUID) -> Block | None:
    """Return the transaction whose COMMIT is to go out with this completion, if it may."""
    if not (_HAS_PIPELINE and _has_djangos(connection, _COMMITS)):
        return None
    if connection.connection._num_transactions:  # psycopg's own blocks forbid a COMMIT
        return None
    return Block.closing(connection, token)


def _begins_plainly(driver: psycopg.Connection[Any]) -> bool:
    """Return whether a transaction of this connection begins with BEGIN and no more."""
    return driver.isolation_level is None and driver.read_only is None and driver.deferrable is None


def _ask(driver: psycopg.Connection[Any], send: Callable[..., None], *arguments: Any) -> Any:
    """
    Send something and return its result; the lock of the connection is held.

    It waits as psycopg does: other threads and greenlets go on, and Ctrl-C cancels the statement.
    """
    send(*arguments)
    result = driver.wait(generators.execute(driver.pgconn))[-1]
    if result.status not in _SUCCESS:
        raise errors.error_from_result(result, encoding="utf-8")
    return result


def _ask_together(
    driver: psycopg.Connection[Any], sends: list[Callable[[], None]]
) -> list[pq.abc.PGresult]:
    """Send all of it, wait once, and return the result of each; raise the first error."""
    results = _results_of(driver, sends)
    for result in results:
        if result.status not in _SUCCESS:
            raise errors.error_from_result(result, encoding="utf-8")
    return results


def _results_of(
    driver: psycopg.Connection[Any], sends: list[Callable[[], None]]
) -> list[pq.abc.PGresult]:
    """Send all of it, wait once, and return the results: one error, and what it has aborted."""
    pgconn = driver.pgconn
    try:
        pgconn.enter_pipeline_mode()
        results = driver.wait(_results(pgconn, [*sends, pgconn.pipeline_sync]))
        if pgconn.status != _BAD:
            pgconn.exit_pipeline_mode()
    except BaseException:  # what is still to come would be taken for the next answer
        pgconn.finish()
        raise
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
    return [result for result in results if result.status != pq.ExecStatus.PIPELINE_SYNC]


def _server_pid(driver: psycopg.Connection[Any]) -> int:
    return int(_ask(driver, driver.pgconn.send_query, b"SELECT pg_backend_pid()").get_value(0, 0))


class _Session:
    """What is prepared in the session of one connection of psycopg."""

    def __init__(self) -> None:
        # It does not know the connection: that would keep it alive.
        self._transformer = Transformer(_loaders())
        #: How often each statement was used that is not prepared, by its text.
        self._uses: dict[str, int] = {}
        self._prepared: dict[str, _Prepared] = {}
        # Nobody else's names, even where a session goes from one client to the next.
        self._names = map(f"idempotency_{uuid.uuid4().hex[:12]}_{{}}".format, itertools.count())
        #: None until the server has been asked.
        self._is_ours: bool | None = None
        #: The last statement of ours has run prepared, and was no completion.
        self._is_proven = False

    def may_run(self, name: str, text: str, is_first: bool) -> bool:
        """Count a use, and return whether the statement may be run prepared at this place."""
        is_proven, self._is_proven = self._is_proven, False
        if self._is_ours is False:
            return False
        if text not in self._prepared:
            if len(self._prepared) >= PREPARED_AT_MOST:
                return False
            if len(self._uses) >= _COUNTED_AT_MOST:
                self._uses.clear()
            uses = self._uses[text] = self._uses.get(text, 0) + 1
            if uses <= USES_BEFORE:
                return False
        return is_first or (is_proven and name not in _OPENS)

    def prepare(self, driver: psycopg.Connection[Any], text: str, insist: bool) -> _Prepared | None:
        """Prepare the statement unless it is; return None where sessions are a pooler's."""
        if text in self._prepared:
            known = self._prepared[text]
            known.uses += 1
            if known.uses < USES_OF_A_PLAN or (insist and not _MAY_CLOSE):
                return known
            del self._prepared[text]
            if _MAY_CLOSE:
                _ask(driver, driver.pgconn.send_close_prepared, known.name)
            else:
                _ask(driver, driver.pgconn.send_query, b"DEALLOCATE " + known.name)
        if self._is_ours is None:
            # PgBouncer and its like make up the number that they tell a client.
            self._is_ours = insist or _server_pid(driver) == driver.pgconn.backend_pid
        if not self._is_ours:
            return None
        statement = _statement(text)
        prepared = _Prepared(next(self._names).encode(), statement)
        _ask(driver, driver.pgconn.send_prepare, prepared.name, statement.sql, statement.types)
        self._prepared[text] = prepared
        return prepared

    def run(
        self,
        driver: psycopg.Connection[Any],
        name: str,
        prepared: _Prepared,
        parameters: Mapping[str, Any],
    ) -> list[Row]:
        """Run a statement that is prepared."""
        send = driver.pgconn.send_query_prepared
        result = _ask(driver, send, *prepared.bound(parameters))
        self._is_proven = name not in _ENDS
        return self._rows(result)

    def run_and_commit(
        self,
        driver: psycopg.Connection[Any],
        prepared: _Prepared,
        parameters: Mapping[str, Any],
        transaction: Block,
    ) -> list[Row] | None:
        """
        Run a completion that raises where it writes nothing, and the COMMIT of its transaction.

        Returns None in that case: the transaction goes on as it was before, and a cursor tells why.
        What the server says against the COMMIT is the transaction's, whose end raises it.
        """
        pgconn = driver.pgconn
        results = _results_of(
            driver,
            [
                partial(pgconn.send_query_params, _BEFORE_COMPLETION, None),
                partial(pgconn.send_query_prepared, *prepared.bound(parameters)),
                partial(pgconn.send_query_params, b"COMMIT", None),
            ],
        )
        _, completion, *_ = results
        failed = next((it for it in results if it.status not in _SUCCESS), None)
        if failed is not None:
            error = errors.error_from_result(failed, encoding="utf-8")
            if completion.status in _SUCCESS:
                transaction.refusal = error  # it is about the COMMIT
            elif error.sqlstate == _WRITES_NOTHING:
                _ask(driver, pgconn.send_query, _UNDO_COMPLETION)
                transaction.may_close = False
                return None
            else:
                raise error
        return self._rows(completion)

    def may_open(self, texts: tuple[str, str], insist: bool) -> bool:
        """Return whether `open_single` may run: nothing is to be prepared, or to be so anew."""
        uses = math.inf if insist and not _MAY_CLOSE else USES_OF_A_PLAN - 1
        for text in texts:
            if text not in self._prepared or self._prepared[text].uses >= uses:
                return False
        return _HAS_PIPELINE

    def open_single(
        self,
        driver: psycopg.Connection[Any],
        texts: tuple[str, str],
        parameters: Mapping[str, Any],
    ) -> list[Row]:
        """Begin a transaction with a lock, a look and a SAVEPOINT; return the rows of both."""
        pgconn = driver.pgconn
        lock, look = (self._prepared[text] for text in texts)
        lock.uses += 1
        look.uses += 1
        _, *bound = lock.bound(parameters)  # both take the record id alone
        _, locked, seen, _ = _ask_together(
            driver,
            [
                partial(pgconn.send_query_params, b"BEGIN", None),
                partial(pgconn.send_query_prepared, lock.name, *bound),
                partial(pgconn.send_query_prepared, look.name, *bound),
                partial(pgconn.send_query_params, _SET_SAVEPOINT, None),
            ],
        )
        self._is_proven = True
        return self._rows(locked) + self._rows(seen)

    def _rows(self, result: Any) -> list[Row]:
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

    def bound(self, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments with which the driver sends it; DataError for text with a NUL."""
        values = [
            None if (value := parameters[parameter]) is None else encode(value)
            for parameter, encode in self.statement.parameters
        ]
        return self.name, values, self.statement.formats, _BINARY


@lru_cache(maxsize=512)  # some for each schema
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


@lru_cache  # there are few, those of the policies
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
    **dict.fromkeys(NAMED, _TEXT),
    "claimed_at": ("timestamptz", _time),
    "duration": _INTERVAL,
    "entry": _BYTES,
    "epoch": ("int8", struct.Struct(">q").pack),
    "error": _TEXT,
    "fingerprint": _BYTES,
    "fingerprints": ("bytea[]", _bytes_array),
    "half": _INTERVAL,
    "held": _BOOLEAN,
    "id": _UUID,
    "lease": _INTERVAL,
    "lifetime": _INTERVAL,
    "result": _BYTES,
    "resumes": _BOOLEAN,
    "retention": _INTERVAL,
    "seen_state": _TEXT,
    "session": _TEXT,
    "seen_token": _UUID,
    "state": _TEXT,
    "take_over": _BOOLEAN,
    "token": _UUID,
}

#: How the types of the columns are read.
_LOADERS: dict[str, type[abc.Loader]] = {
    "bool": BoolBinaryLoader,
    "bytea": ByteaBinaryLoader,
    "int4": Int4BinaryLoader,
    "int8": Int8BinaryLoader,
    "text": TextBinaryLoader,
    # The statements read the time in UTC, and this loader says so: it knows no session's zone.
    "timestamp": TimestamptzBinaryLoader,
    "uuid": UUIDBinaryLoader,
    "varchar": TextBinaryLoader,
}


@cache
def _loaders() -> AdaptersMap:
    """Return the loaders of the columns, whatever the project has registered for its own."""
    loaders = AdaptersMap(types=psycopg.adapters.types)
    for kind, loader in _LOADERS.items():
        loaders.register_loader(kind, loader)
    return loaders
