"""A database connection of its own for a few statements: no pool, and a limit to each wait."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.stores.database.dialect import Dialect

#: Seconds that a server may take to accept the connection, and to answer.
CONNECT_SECONDS = 5
ANSWER_SECONDS = 10


@contextmanager
def fresh_connection(using: str, dialect: Dialect) -> Iterator[None]:
    """
    Connect this thread anew, past its pool, and let go of that connection at the end.

    In the transaction of another's attempt by a second wrapper, else by its own, which may know
    more than its settings: a tenant's schema, say. A server that accepts and then keeps silent
    breaks the connection, so no caller waits for ever.
    """
    own = connections[using]
    wrapper = own.copy() if own.in_atomic_block else own
    settings = wrapper.settings_dict
    _close(wrapper)
    wrapper.settings_dict = _bounded(settings, dialect)
    connections[using] = wrapper
    try:
        watched = dialect.has_server and not dialect.answer_timeouts
        with _broken_when_silent(wrapper) if watched else nullcontext():
            yield
    finally:
        _close(wrapper)
        wrapper.settings_dict = settings
        connections[using] = own


def _close(connection: BaseDatabaseWrapper) -> None:
    with suppress(Error):  # one that is dead is let go of all the same
        connection.close()


def _bounded(settings: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    if not dialect.has_server:  # a file: its own time-out bounds each wait
        return settings
    timeouts = dict.fromkeys(dialect.answer_timeouts, ANSWER_SECONDS)
    options = {"connect_timeout": CONNECT_SECONDS, **timeouts, **settings["OPTIONS"]}
    options.pop("pool", None)
    return {**settings, "OPTIONS": options}


@contextmanager
def _broken_when_silent(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Break the connection when its time is over, since its driver waits without a limit."""
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
