"""A database connection of its own for a few statements: no pool, and a limit to each wait."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["fresh_connection"]

#: Seconds that a server may take to accept the connection, and to answer.
CONNECT_SECONDS = 5
ANSWER_SECONDS = 10


@contextmanager
def fresh_connection(using: str) -> Iterator[None]:
    """
    Put a new connection in the place of this thread's, which may be dead or used up.

    A server that accepts and then keeps silent breaks it, so no caller waits for ever.
    """
    own = connections[using]
    connections[using] = fresh = _unpooled_copy(own)
    try:
        with _broken_when_silent(fresh):
            yield
    finally:
        connections[using] = own
        fresh.close()


def _unpooled_copy(connection: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    copy = connection.copy()
    options = copy.settings_dict["OPTIONS"]
    options.pop("pool", None)
    options.setdefault("connect_timeout", CONNECT_SECONDS)
    if copy.vendor == "mysql":
        options.setdefault("read_timeout", ANSWER_SECONDS)
        options.setdefault("write_timeout", ANSWER_SECONDS)
    return copy


@contextmanager
def _broken_when_silent(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Break the connection when its time is over: drivers of PostgreSQL wait without a limit."""
    if connection.vendor != "postgresql":
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(ANSWER_SECONDS):
            _break(connection)

    watcher = threading.Thread(target=watch, name="django-idempotency-time-out", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _break(connection: BaseDatabaseWrapper) -> None:
    driver: Any = connection.connection
    if driver is None:  # connecting has a time-out of its own
        return
    with suppress(Error, OSError), connection.wrap_database_errors:
        number = driver.fileno()
        with socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as ours:
            # The number may have become another's meanwhile, unless the driver still has it.
            if driver.fileno() == number:
                ours.shutdown(socket.SHUT_RDWR)
