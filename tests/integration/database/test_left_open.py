"""R59: `separate`, and work that leaves a transaction open, or autocommit off."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import close_old_connections, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

import django_idempotency as idempotency
from django_idempotency import InProgress, signals
from django_idempotency.http import idempotent, scopes
from django_idempotency.records import State
from tests.app.models import Effect
from tests.integration.database.claims import Boom
from tests.integration.database.sessions import execute
from tests.unit.core.conftest import CALLERS, kept, names, never
from tests.unit.http.api import replayed
from tests.unit.views.conftest import AsgiClient

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "sqlite", "mariadb"),
]


@idempotent(scope=scopes.anyone, transaction="separate")
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(off(commits=request.POST["commits"] == "True"), status=201)


@idempotent(scope=scopes.anyone, transaction="separate")
async def coroutine(request: HttpRequest) -> HttpResponse:
    done = await sync_to_async(off)(commits=request.POST["commits"] == "True")
    return HttpResponse(done, status=201)


urlpatterns = [path("view/", view), path("coroutine/", coroutine)]

callers = pytest.mark.parametrize("caller", ["run", "attempt", "arun", "aattempt"])


@pytest.fixture(autouse=True)
def autocommit() -> Any:
    """As at the end of a request: a connection whose mode is another one is closed."""
    yield
    if not connection.in_atomic_block:  # that of a TestCase
        close_old_connections()


def off(lease: Any = None, *, commits: bool = True) -> str:
    """Turn autocommit off and leave it off."""
    transaction.set_autocommit(False)
    Effect.objects.create(name="work")
    if commits:
        transaction.commit()
    return "done"


def off_and_open(lease: Any = None) -> str:
    return off(commits=False)


def begin_by_statement(lease: Any = None) -> str:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Effect.objects.create(name="work")
    return "done"


def call(caller: str, work: Any) -> Any:
    """Call, and end the request; a coroutine's connections end with its loop."""
    told = CALLERS[caller](work, key="k", scope="s", transaction="separate")
    close_old_connections()
    return told


@callers
def test_R59_completion_after_the_work_has_committed_stands(caller):
    """Autocommit is off, so nobody but the store would commit it."""
    outcome = call(caller, off)
    assert (outcome.result, outcome.stored) == ("done", True)
    assert (names(), kept().state) == (["work"], State.COMPLETED)
    assert kept().expires_at == outcome.expires_at
    assert call("run", never).replayed


@callers
def test_R59_completion_inside_what_the_work_has_left_open_is_not_stored(caller, caplog):
    told = []
    signals.store_failed.connect(receiver := lambda **given: told.append(given), weak=False)
    try:
        outcome = call(caller, off_and_open)
    finally:
        signals.store_failed.disconnect(receiver)
    assert (outcome.result, outcome.stored, outcome.expires_at) == ("done", False, None)
    assert len(told) == 1
    assert "left a transaction open" in caplog.text
    assert (names(), kept().state) == ([], State.IN_PROGRESS)
    with pytest.raises(InProgress):
        call("run", never)


@pytest.mark.leg("postgres18", "sqlite")
def test_R59_a_BEGIN_that_was_sent_as_a_statement_is_seen():
    outcome = idempotency.run(begin_by_statement, key="k", scope="s", transaction="separate")
    assert not outcome.stored
    connection.close()
    assert (names(), kept().state) == ([], State.IN_PROGRESS)


def test_R59_a_block_of_the_work_that_is_left_open_takes_the_completion_with_it():
    """Whichever way it ends, work and record agree."""
    for ends in (None, Boom):
        with suppress(Boom), ExitStack() as later:
            with idempotency.attempt(key=f"{ends}", scope="s", transaction="separate") as attempt:
                later.enter_context(transaction.atomic())
                Effect.objects.create(name="work")
                attempt.complete("done")
            assert not attempt.outcome.stored
            if ends:
                raise ends
    assert names() == ["work"]
    assert [kept("None").state, kept(f"{Boom}").state] == [State.COMPLETED, State.IN_PROGRESS]


def test_R59_what_is_committed_later_is_kept_with_its_work():
    outcome = idempotency.run(off_and_open, key="k", scope="s", transaction="separate")
    transaction.commit()
    transaction.set_autocommit(True)
    assert not outcome.stored
    assert (names(), kept().state) == (["work"], State.COMPLETED)


@callers
def test_R58_failure_after_autocommit_was_turned_off_frees_the_key(caller):
    def fail(lease):
        off()
        raise Boom

    with pytest.raises(Boom):
        call(caller, fail)
    close_old_connections()
    assert kept().state is State.FAILED
    transaction.set_autocommit(True)
    assert call("run", lambda lease: "again").result == "again"


@pytest.mark.leg("postgres18", "mariadb")
def test_R59_a_session_that_is_lost_with_the_work_keeps_nothing_of_it(other):
    """The completion goes to no other connection: it would tell of work that is gone."""
    vendor = connection.vendor
    own = "SELECT pg_backend_pid()" if vendor == "postgresql" else "SELECT CONNECTION_ID()"
    kill = "SELECT pg_terminate_backend({}, 60000)" if vendor == "postgresql" else "KILL {}"

    def lose(lease):
        off(commits=False)
        other(execute, kill.format(execute(own)))
        return "done"

    outcome = idempotency.run(lose, key="k", scope="s", transaction="separate")
    connection.close()
    assert not outcome.stored
    assert (names(), kept().state) == ([], State.IN_PROGRESS)


@pytest.mark.leg("sqlite")
@pytest.mark.parametrize("commits", [None, True, False])
def test_R60_completion_on_a_connection_that_the_work_has_closed_is_not_stored(commits):
    """Past Django, which does not know it."""

    def close(lease):
        if commits is not None:
            off(commits=commits)
        connection.connection.close()
        return "done"

    outcome = idempotency.run(close, key="k", scope="s", transaction="separate")
    connection.close()
    assert (outcome.result, outcome.stored) == ("done", False)
    assert (names(), kept().state) == (["work"] if commits else [], State.IN_PROGRESS)


@pytest.mark.django_db
def test_R84_a_block_of_a_TestCase_is_not_left_open_by_the_work():
    outcome = idempotency.run(lambda lease: "done", key="k", scope="s", transaction="separate")
    assert outcome.stored


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kind", ["view", "coroutine"])
def test_R59_view_that_leaves_autocommit_off(settings, kind, commits):
    settings.ROOT_URLCONF = __name__
    client = AsgiClient() if kind == "coroutine" else Client()

    def post() -> Any:
        form, key = "application/x-www-form-urlencoded", {"Idempotency-Key": "key"}
        answer = client.generic("POST", f"/{kind}/", f"commits={commits}", form, headers=key)
        close_old_connections()
        return answer

    first = post()
    assert first.status_code == 201
    assert first.headers.get("Idempotency-Stored") == (None if commits else "false")
    assert ("Idempotency-Expires" in first.headers) is commits
    again = post()
    assert (replayed(again), again.status_code) == ((True, 201) if commits else (False, 409))
    assert names() == (["work"] if commits else [])
