"""Exact numbers of a whole store, asked for within a time and without results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error, connections, transaction

from django_idempotency.exceptions import StoreError
from django_idempotency.records import Filters, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.exclusive import ExclusiveStore

__all__ = ["is_cheap", "stale_leases", "within"]

#: By the clock of the database, which alone tells whether a lease has lapsed.
_STALE = {
    "postgresql": """
SELECT count(*) FROM idempotency_record
 WHERE state = 'IN_PROGRESS' AND lease_until <= now()
""",
    "mysql": """
SELECT COUNT(*) FROM idempotency_record
 WHERE state = 'IN_PROGRESS' AND lease_until <= UTC_TIMESTAMP(6)
""",
    "sqlite": """
SELECT COUNT(*) FROM idempotency_record
 WHERE state = 'IN_PROGRESS' AND lease_until <= strftime('%Y-%m-%d %H:%M:%f', 'now')
""",
}
#: Instructions of SQLite between two looks at the clock.
_STEPS = 10_000


def is_cheap(store: BaseStore) -> bool:
    """Whether the whole store can be asked without a read of each record with its result."""
    return isinstance(store, (DatabaseStore, ExclusiveStore))


@contextmanager
def within(store: BaseStore, seconds: float) -> Iterator[None]:
    """
    Limit the time of each statement of this block on a database, to so many seconds.

    On a thread that does nothing else: it leaves a connection that `BaseStore.idle` closes. Raises
    StoreError for a statement that takes longer. Other stores have time-outs of their own.
    """
    if not isinstance(store, DatabaseStore):
        yield
        return
    try:
        with store.fresh_connection(), _limited(store.using, seconds):
            yield
    except Error as error:
        what = f"The table of the database {store.using!r} could not be read"
        raise StoreError(f"{what}: {type(error).__name__}.") from error


def stale_leases(store: BaseStore, seconds: float) -> int:
    """
    Return how many leases are stale, of all records of a store.

    A database reads its table, and no results; call it in a block of `within`. Another store is
    read record by record. Raises StoreError if that takes longer than so many seconds.
    """
    if isinstance(store, DatabaseStore):
        connection = connections[store.using]
        with connection.cursor() as cursor:
            cursor.execute(_STALE[connection.vendor])
            return int(cursor.fetchone()[0])
    wanted, ends = Filters(state=State.IN_PROGRESS, stale=True), time.monotonic() + seconds
    found, cursor_of_page = set(), None
    while True:
        page = store.browse(filters=wanted, cursor=cursor_of_page)
        found |= {record.record_id for record in page.records}  # Redis may give one twice
        if (cursor_of_page := page.cursor) is None:
            return len(found)
        if time.monotonic() > ends:
            raise StoreError(f"The store {store.alias!r} was not read in {seconds} seconds.")


@contextmanager
def _limited(using: str, seconds: float) -> Iterator[None]:
    """Limit the time of each statement on this thread's connection."""
    connection = connections[using]
    if connection.vendor == "sqlite":
        connection.ensure_connection()
        ends = time.monotonic() + seconds
        driver = connection.connection
        driver.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, _STEPS)
        return
    # PostgreSQL's is of one transaction: behind PgBouncer the session is other clients', too.
    local = connection.vendor == "postgresql"
    with transaction.atomic(using):
        with connection.cursor() as cursor:
            if local:
                cursor.execute(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
            else:
                cursor.execute(f"SET SESSION max_statement_time = {float(seconds)}")
        yield
