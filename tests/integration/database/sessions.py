"""A second session on the database, and a store that lets a test in between its statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from django.db import connections

from django_idempotency.stores.database import DatabaseStore
from tests.services.processes import wait_until

T = TypeVar("T")

#: A statement that takes longer hangs: the tripwire.
HANGING = 10
#: How long a test waits for what is going to happen, however busy the machine is.
PATIENCE = 60

_OWN_SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
_WAITS = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted",
    # The table is made anew only where nobody has read it for a tenth of a second.
    "mysql": (
        "SELECT COUNT(*) FROM (SELECT SLEEP(0.12) AS slept) AS before_that, "
        "information_schema.innodb_trx "
        "WHERE slept = 0 AND trx_mysql_thread_id = %s AND trx_state = 'LOCK WAIT'"
    ),
}


class Session:
    """A thread with a connection of its own, which does one thing after the other when told."""

    def __init__(self, using: str = "default") -> None:
        self.using = using
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="test-session")
        self.pid = self(self._open)

    def __call__(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Call `function` in this session and wait for its result."""
        return self.start(function, *arguments, **keywords).result(PATIENCE)

    def start(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> Future[T]:
        """Call `function` in this session and do not wait."""
        return self._thread.submit(function, *arguments, **keywords)

    def at_once(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Call `function` in this session; it may not wait for a lock, for however short a time."""
        future = self.start(function, *arguments, **keywords)
        self.settles(future)
        assert future.done(), "it waits for a lock"
        return future.result()

    def settles(self, future: Future[Any]) -> None:
        """Wait until the call of `start` has ended, or waits for a lock of another session."""
        wait([future], timeout=0.05)
        wait_until(
            lambda: future.done() or self._waits(), seconds=PATIENCE, what="the session to settle"
        )

    def close(self) -> None:
        """Close the connection and end the thread."""
        self(connections.close_all)
        self._thread.shutdown()

    def _open(self) -> int:
        hang_up_after(HANGING, self.using)
        if (own := _OWN_SESSION.get(connections[self.using].vendor)) is None:
            return 0
        with connections[self.using].cursor() as cursor:
            cursor.execute(own)
            return int(cursor.fetchone()[0])

    def _waits(self) -> bool:
        with connections[self.using].cursor() as cursor:
            cursor.execute(_WAITS[connections[self.using].vendor], [self.pid])
            return bool(cursor.fetchone()[0])


class InterruptedStore(DatabaseStore):
    """A store that calls back, once, before its next statement of a name."""

    def __init__(self, *, using: str = "default") -> None:
        super().__init__(using=using)
        self._before: dict[str, Callable[[], Any]] = {}

    def before(self, statement: str, callback: Callable[[], Any]) -> None:
        """Call `callback` when `statement` is about to be sent for the next time."""
        self._before[statement] = callback

    def before_any(self, statements: Iterable[str], callback: Callable[[], Any]) -> None:
        """Call `callback` when the first of these statements is about to be sent."""

        def once() -> None:
            self._before.clear()
            callback()

        self._before.update(dict.fromkeys(statements, once))

    @property
    def reached(self) -> bool:
        """Whether every callback has been called: else the test has shown nothing."""
        return not self._before

    def _execute(self, name: str, *arguments: Any, **counts: Any) -> Any:
        if callback := self._before.pop(name, None):
            callback()
        return super()._execute(name, *arguments, **counts)


@dataclass
class Two:
    """The test's own session, whose store can be interrupted, and another with a plain store."""

    other: Session
    mine: InterruptedStore = field(default_factory=InterruptedStore)
    theirs: DatabaseStore = field(default_factory=DatabaseStore)


def execute(sql: str) -> Any:
    """Execute SQL in this thread's session; the first column of what comes back, if anything."""
    with connections["default"].cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


@contextmanager
def in_another_database(*statements: str) -> Iterator[None]:
    """Have executed these in an open transaction in another database of PostgreSQL's server."""
    settings = connections["default"].get_connection_params()
    keywords = {
        name: settings[name] for name in ("host", "port", "user", "password") if settings.get(name)
    }
    with psycopg.connect(dbname="postgres", **keywords) as other:
        for statement in statements:
            other.execute(statement)
        yield
        other.rollback()


def hang_up_after(seconds: float, using: str = "default") -> None:
    """Make a statement of this thread's session that hangs for so long an error: the tripwire."""
    with connections[using].cursor() as cursor:
        if connections[using].vendor == "postgresql":
            cursor.execute(f"SET statement_timeout = {round(seconds * 1000)}")
        elif connections[using].vendor == "mysql":
            cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {max(1, round(seconds))}")
        else:
            cursor.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
