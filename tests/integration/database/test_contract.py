"""The contract on the database store, on the database of the running leg."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection

from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing import StoreContract
from tests.integration.contracts import second_server
from tests.integration.database.sessions import InterruptedStore
from tests.services import current_leg

pytestmark = pytest.mark.django_db(transaction=True)


class DatabaseHooks:
    """What the contract asks of the tests of a store."""

    backend = "tests.integration.database.sessions.InterruptedStore"
    supports_join = True
    moment = timedelta(milliseconds=20)
    patience = 60  # each process imports Django, which takes seconds on a busy machine

    def corrupt(self, store: BaseStore, record_id: UUID) -> None:
        assert IdempotencyRecord.objects.filter(pk=record_id).update(state="NO STATE") == 1

    def forget(self, store: BaseStore, record_id: UUID) -> None:
        assert IdempotencyRecord.objects.filter(pk=record_id).delete()[0] == 1

    @contextmanager
    def lose_answer(self, store: BaseStore) -> Iterator[None]:
        """Close the connection after a write; `test_lost_answers` has a proxy do so."""
        lost, looked = [], []

        def lose(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            result = execute(sql, params, many, context)
            # PostgreSQL's claim inserts nothing where there is a record.
            found = "INSERT" in sql and context["cursor"].rowcount == 0
            if found and connection.vendor == "postgresql":
                return result
            if lost or not any(word in sql for word in ("INSERT INTO", "UPDATE idempotency")):
                looked.append(sql)
                return result
            lost.append(sql)
            if connection.vendor == "postgresql":
                connection.connection.close()
            connection.errors_occurred = True
            raise OperationalError("The server closed the connection unexpectedly.")

        with connection.execute_wrapper(lose):
            yield
        assert lost or looked, "no answer was lost"  # a refused claim only looks

    @contextmanager
    def between_read_and_write(
        self, store: BaseStore, callback: Callable[[], object]
    ) -> Iterator[None]:
        assert isinstance(store, InterruptedStore)
        # MariaDB's sweep reads what it then holds, so nobody comes in between.
        sweep = {"mysql": "SWEEPABLE", "postgresql": "SWEEP_NEXT"}.get(connection.vendor, "SWEEP")
        store.before_any(("RECLAIM", sweep), callback)
        yield
        assert store.reached, "nothing was called"


class TestDatabaseStore(DatabaseHooks, StoreContract):
    own_clock = current_leg() != "sqlite"
    writers_queue = current_leg() == "sqlite"
    # Of which make proof has more.
    thread_keys = 10
    racers = 2
    process_keys = 50


if current_leg() == "postgres16":
    second_server(TestDatabaseStore)
