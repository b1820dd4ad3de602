"""Sessions that a forked child has from its parent: both would read each other's answers."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any
from weakref import WeakSet

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.exceptions import StoreError
from django_idempotency.stores.forks import in_each_child

#: The driver's connections that were open at the fork; none in a process that was not forked.
sessions: Collection[Any] = ()


def refuse(connection: BaseDatabaseWrapper) -> None:
    """Raise StoreError for a connection that this child has from its parent; it is opened."""
    connection.ensure_connection()  # a pool may give one of the parent's
    if connection.connection in sessions:
        raise StoreError(
            f"The connection to {connection.alias!r} was opened before this process was forked, "
            f"and its parent may use it, too. Close it before the fork: "
            f"connections.close_all(), and close_pool() of a connection with a pool."
        )


def _inherit() -> None:
    """Note, in a child, the connections of its parent to servers: in use, and idle in pools."""
    global sessions
    if not settings.configured:  # so it has none
        return
    found = [
        connection.connection
        for connection in connections.all(initialized_only=True)
        if connection.vendor != "sqlite" and connection.connection is not None
    ]
    if (postgresql := sys.modules.get("django.db.backends.postgresql.base")) is not None:
        for pool in postgresql.DatabaseWrapper._connection_pools.values():
            found += pool._pool
    sessions = WeakSet(found) if found else ()


in_each_child(_inherit)
