"""Which connections a thread lets go of while it waits."""

from __future__ import annotations

import threading

from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


def connections_to_let_go(*, close: bool) -> list[BaseDatabaseWrapper]:
    """
    Return this thread's connections that go while it waits, whatever it used them for.

    A pooled one goes back to its pool. Another one is closed only if the caller says so, since it
    takes with it what a session has: a cursor that is being read, an advisory lock. One that is to
    outlive its request stays: its thread has it between requests, too. On the thread that the
    coroutines outside of requests share, all stay: another coroutine may be using them.
    """
    found: list[BaseDatabaseWrapper] = []
    if threading.current_thread() in SyncToAsync.single_thread_executor._threads:
        return found
    for connection in connections.all(initialized_only=True):
        settings = connection.settings_dict
        short_lived = settings["CONN_MAX_AGE"] == 0 and connection.vendor != "sqlite"
        may_close = settings["OPTIONS"].get("pool") or (close and short_lived)
        if may_close and not connection.in_atomic_block:
            found.append(connection)
    return found
