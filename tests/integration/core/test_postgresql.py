"""What the engine and the checks make of a server: errors that only the driver sees, isolation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.core import checks
from django.db import DatabaseError, connection, connections, transaction
from django.test import override_settings
from psycopg import IsolationLevel

import django_idempotency as idempotency
from django_idempotency import InProgress, WorkRolledBack
from django_idempotency.claims import ClaimRequest
from django_idempotency.conf import store_for
from django_idempotency.keys import record_id
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

MEMORY = "django_idempotency.stores.memory.MemoryStore"


def run(work: Any, **arguments: Any) -> Any:
    return idempotency.run(work, key="k", scope="s", **arguments)


def swallow(using: str) -> Callable[[Any], str]:
    """Return work that swallows the error of a raw statement, which Django does not see."""

    def work(lease: Any) -> str:
        Effect.objects.using(using).create(name="work")
        with suppress(DatabaseError), connections[using].cursor() as cursor:
            cursor.execute("SELECT no_such_column")
        return "done"

    return work


@pytest.mark.parametrize("mode", ["joined", "single"])
def test_R91_error_of_a_raw_cursor_on_the_stores_alias(mode: str) -> None:
    with pytest.raises(WorkRolledBack):
        run(swallow("default"), transaction=mode)
    assert (Effect.objects.count(), IdempotencyRecord.objects.get().state) == (0, "FAILED")


@pytest.mark.parametrize("using", ["default", "other"])
def test_R91_error_of_a_raw_cursor_in_a_transaction_of_the_callers(
    settings: Any, using: str
) -> None:
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY}}
    with transaction.atomic(using=using), pytest.raises(WorkRolledBack):
        run(swallow(using))
    assert not run(lambda lease: "again").replayed


def test_R60_separate_completes_on_a_new_connection_after_its_own_was_lost() -> None:
    def work(lease: Any) -> int:
        Effect.objects.create(name="x")
        with connection.copy().cursor() as other:
            pid = connection.connection.info.backend_pid
            other.execute("SELECT pg_terminate_backend(%s)", [pid])
            other.connection.close()
        return 1

    first, again = (run(work, transaction="separate") for _ in range(2))
    assert (first.stored, again.replayed) == (True, True)
    assert Effect.objects.count() == 1


def test_R69_renewal_takes_no_connection_of_the_pool() -> None:
    """The work that a lease is for may have used the pool up."""
    store = store_for()
    lease = store.claim(ClaimRequest(record_id("call", "s", "k"), "s", "k"))
    original, pooled = connections["default"], connections["default"].copy()
    pooled.settings_dict["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 1, "timeout": 1}
    pooled.settings_dict["CONN_MAX_AGE"] = 0
    original.close()
    connections["default"] = pooled

    def renew() -> None:
        connections["default"] = mine = pooled.copy()
        try:
            held.append(store.renew([lease], timedelta(seconds=60)))
        finally:
            mine.close()

    held: list[Any] = []
    try:
        pooled.ensure_connection()
        thread = threading.Thread(target=renew)
        thread.start()
        thread.join(20)
        assert held == [{lease}]
    finally:
        pooled.close()
        pooled.close_pool()
        connections["default"] = original


@pytest.mark.parametrize("mode", ["joined", "separate"])
def test_R69_work_of_three_leases_beside_a_claimant(mode: str) -> None:
    """The claimant tries all the time; only the process's keeper stands between them."""
    arguments = {"transaction": mode, "lease": 1}
    began, ended = threading.Event(), threading.Event()
    outcomes = []

    def work(lease: Any) -> str:
        began.set()
        ended.wait(3)
        lease.check()
        return "A"

    def owner() -> None:
        try:
            outcomes.append(run(work, **arguments))
        finally:
            ended.set()
            connections.close_all()

    def never(lease: Any) -> None:
        pytest.fail("took over")

    thread = threading.Thread(target=owner)
    thread.start()
    assert began.wait(10)
    refused = 0
    while not ended.wait(0.05):
        with suppress(InProgress):
            assert run(never, **arguments).replayed
            break
        refused += 1
    thread.join(10)
    assert outcomes[0].replayed is False
    assert refused > 10
    assert run(never, **arguments).result == "A"


class TestW003:
    """Above READ COMMITTED a renewal would make the completion of `joined` fail."""

    def check(self, **alias: Any) -> list[Any]:
        with override_settings(IDEMPOTENCY={"default": alias}):
            found = checks.run_checks(tags=["database"], databases=["default"])
        return [it.id for it in found if str(it.id).startswith("django_idempotency")]

    @pytest.fixture(params=["option", "server"])
    def serializable(self, request: Any, monkeypatch: Any) -> Iterator[None]:
        if request.param == "option":
            options = connection.settings_dict["OPTIONS"]
            monkeypatch.setitem(options, "isolation_level", IsolationLevel.SERIALIZABLE)
            yield
            return
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_isolation TO 'serializable'")
            yield
            cursor.execute("RESET default_transaction_isolation")

    def test_joined_alone_is_told_of(self, serializable: None) -> None:
        for alias in ({}, {"TRANSACTION": "joined"}):
            assert self.check(**alias) == ["django_idempotency.W003"]
        for mode in ("single", "separate"):
            assert self.check(TRANSACTION=mode) == []
        assert self.check(LEESE=5) == []  # a bad setting is told of elsewhere

    def test_databases_that_are_not_asked_for_are_not_touched(self, serializable: None) -> None:
        found = checks.run_checks(tags=["database"], databases=None)
        assert [message for message in found if "idempotency" in str(message.id)] == []

    def test_READ_COMMITTED_has_none(self) -> None:
        assert self.check() == []
