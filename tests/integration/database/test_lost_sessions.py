"""R91: work that loses its session, or ends its transaction, and goes on all the same."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connection, connections, transaction

import django_idempotency as idempotency
from django_idempotency import WorkRolledBack
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.integration.database.sessions import execute
from tests.integration.database.views import ToldView
from tests.unit.core.conftest import CALLERS, MEMORY, kept, names, never, run
from tests.unit.http.api import problem, replayed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18", "mariadb")]

callers = pytest.mark.parametrize("caller", ["run", "attempt", "arun", "aattempt"])
each_mode = pytest.mark.parametrize("joins", ["joined", "single"])
OWN = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
KILL = {"postgresql": "SELECT pg_terminate_backend({}, 60000)", "mysql": "KILL {}"}


def reconnect() -> None:
    """As a helper does that repeats a statement: Django forgets the transaction it was in."""
    connection.close()
    connection.connect()


@pytest.fixture
def lose(other):
    """Work whose session the server ends between its two statements."""

    def work(lease: Any = None) -> str:
        Effect.objects.create(name="before")
        other(execute, KILL[connection.vendor].format(execute(OWN[connection.vendor])))
        reconnect()
        Effect.objects.create(name="after")
        return "done"

    return work


def close(lease: Any = None) -> str:
    """Work that closes the connection itself: with a pool it may get the same one again."""
    Effect.objects.create(name="before")
    reconnect()
    Effect.objects.create(name="after")
    return "done"


@pytest.fixture
def pooled(transactional_db):
    """The default database behind a pool of one connection."""
    unpooled = connections["default"]
    unpooled.close()
    connections["default"] = pooled = unpooled.copy()
    pooled.settings_dict["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 1}
    yield pooled
    connections["default"] = unpooled
    pooled.close()
    pooled.close_pool()


@each_mode
@callers
def test_R91_I13_work_that_goes_on_in_another_session_is_not_completed(lose, caller, joins):
    """What it has done there is committed; what it did before is gone."""
    with pytest.raises(SessionLost):
        CALLERS[caller](lose, key="k", scope="s", transaction=joins)

    assert names() == ["after"]
    record = kept()
    assert record is None or record.state == "FAILED"
    assert not run(lambda lease: "again", transaction=joins).replayed


@each_mode
def test_R91_I13_work_that_opens_a_transaction_in_the_other_session_is_not_completed(joins):
    with ExitStack() as stack, pytest.raises(SessionLost):  # noqa: PT012

        def work(lease: Any) -> str:
            close()
            stack.enter_context(transaction.atomic())
            return "done"

        run(work, transaction=joins)
    connection.close()
    assert kept() is None or kept().state == "FAILED"


def test_R91_attempt_within_work_completes_in_the_session_in_which_it_has_begun():
    def outer(lease: Any) -> str:
        close()
        return str(run(lambda lease: "inner", "inner").result)

    with pytest.raises(SessionLost):
        run(outer, transaction="joined")
    assert run(never, "inner").replayed


@pytest.mark.leg("postgres18")
@each_mode
def test_R91_connection_that_a_pool_gives_back_is_another_session(pooled, joins):
    pooled.ensure_connection()
    first = pooled.connection
    with pytest.raises(SessionLost):
        run(close, transaction=joins)
    assert pooled.connection is first
    assert names() == ["after"]
    assert run(lambda lease: "again", transaction=joins).result == "again"


def test_R91_I13_store_that_cannot_join_does_not_complete(settings, lose):
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY}}
    with transaction.atomic(), pytest.raises(SessionLost):
        run(lose)
    assert kept().state == "FAILED"
    assert names() == ["after"]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_R91_R90_request_whose_work_goes_on_in_another_session_is_503(
    api, mode, atomic_requests, told, lose, monkeypatch
):
    """With a key and without one; with `separate` and no transaction nothing is lost."""
    told(lose)
    monkeypatch.setattr(ToldView, "idempotency_required", False)
    is_lost = atomic_requests or mode != "separate"
    for key in ("k", None):
        response = api(key=key, path="/told/")
        if is_lost:
            assert problem(response) == (503, "store_unavailable")
        else:
            assert response.status_code == 201
    assert replayed(api(key="k", path="/told/")) is not is_lost


# Transactions that a statement ends.


def roll_back(lease: Any = None) -> str:
    Effect.objects.create(name="lost")
    execute("ROLLBACK")
    return "done"


def commit(lease: Any = None) -> str:
    Effect.objects.create(name="stays")
    execute("COMMIT")
    return "done"


@pytest.mark.leg("postgres18", "postgres16", "sqlite")
@each_mode
@callers
def test_R91_work_whose_transaction_a_statement_has_ended_is_an_error(caller, joins):
    for work, left in ((roll_back, []), (commit, ["stays"])):
        with pytest.raises(WorkRolledBack):
            CALLERS[caller](work, key="k", scope="s", transaction=joins)
        assert names() == left
        assert kept() is None or kept().state != "COMPLETED"
        connection.close()  # on SQLite the claim of `single` was committed, too
        IdempotencyRecord.objects.all().delete()


@pytest.mark.leg("postgres18", "postgres16", "sqlite")
def test_R91_store_that_cannot_join_does_not_complete_what_a_statement_has_ended(settings):
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY}}
    with pytest.raises(WorkRolledBack), transaction.atomic():
        run(roll_back)
    assert (names(), kept().state) == ([], "FAILED")


@pytest.mark.leg("postgres18", "postgres16", "sqlite")
@each_mode
@callers
def test_R91_work_that_sends_no_statement_is_completed(caller, joins):
    """PostgreSQL's driver has begun no transaction then, or the one that its claim has begun."""
    connection.ensure_connection()
    before = set(vars(connections["default"]))
    for key in "abcd":  # prepared at last, so that no cursor is used
        CALLERS[caller](lambda lease: "done", key=key, scope="s", transaction=joins)
        assert set(vars(connections["default"])) == before
    assert all(run(never, key, transaction=joins).replayed for key in "abcd")


@pytest.mark.leg("postgres18", "postgres16", "sqlite")
@each_mode
def test_R91_work_after_work_that_a_statement_has_ended_is_completed(joins):
    """Nothing of it is left on the connection."""
    with pytest.raises(WorkRolledBack):
        run(roll_back, transaction=joins)
    assert run(lambda lease: "done", transaction=joins).result == "done"
    assert idempotency.run(never, key="k", scope="s").replayed
