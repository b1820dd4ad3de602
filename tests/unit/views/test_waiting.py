"""R51, R52: duplicates that wait for the answer of the first."""

from __future__ import annotations

import asyncio
from contextvars import Context
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.urls import path

import django_idempotency as idempotency
from django_idempotency.engine import waiting
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from django_idempotency.transactions.connections import connections_to_let_go
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import a_function, api_for, send

pytestmark = pytest.mark.django_db(transaction=True)

LONG = 60
BUSY = (409, "in_progress")


# Requests that meet on one loop; on threads: tests/unit/contract, tests/integration/views.


@pytest.fixture
def race(policy, gate, looks, in_loop, monkeypatch):
    """Return the owner's answer, and those of duplicates that come while it is at work."""
    policy(WAIT=LONG, TRANSACTION="joined")
    monkeypatch.setattr(waiting.Poller, "wait", None)  # who waits leaves the loop to others

    async def main():
        first = asyncio.create_task(send("async-function"))
        assert await asyncio.to_thread(gate.reached.wait, LONG)
        others = [asyncio.create_task(send("async-function")) for _ in range(3)]
        await asyncio.to_thread(looks.wait_for, 3)
        gate.open.set()
        return await asyncio.gather(first, *others)

    return lambda: in_loop(main)


def test_R51_duplicates_wait_for_the_answer(race, runs):
    answers = race()

    assert [answer.status_code for answer in answers] == [201] * 4
    assert [replayed(answer) for answer in answers] == [False, True, True, True]
    assert len({answer.content for answer in answers}) == 1
    assert len(runs) == Effect.objects.count() == 1


# How long.


@pytest.fixture
def busy(api, in_progress):
    """A view whose record another attempt has, for as long as the test takes."""
    api()
    in_progress()
    return api


@a_function
def test_R51_prefer_shortens_the_policys_wait_if_it_says_a_number(busy, policy, waited):
    """Which is none by default."""
    table = {"wait=3": 3}
    table |= dict.fromkeys(
        ("wait=0", "respond-async, wait=0", 'wait="0"', "return=minimal;WAIT=0"), 0
    )
    table |= dict.fromkeys(("wait", "wait=", "wait=-1", "wait=x", "await=0", "", "wait=1000"), 5)
    assert problem(busy(headers={"Prefer": "wait=5"})) == BUSY
    assert waited.seconds == 0

    policy(WAIT=5)
    for prefer, seconds in table.items():
        waited.seconds = 0.0
        assert problem(busy(headers={"Prefer": prefer})) == BUSY
        assert waited.seconds == pytest.approx(seconds), prefer


@a_function
def test_R38_R51_R71_mismatch_and_a_stale_attempt_are_not_waited_for(
    busy, in_progress, policy, looks
):
    policy(ON_STALE="refuse", WAIT=LONG)

    assert problem(busy({"name": "other"})) == (422, "idempotency_key_reused")
    in_progress(lease=timedelta(microseconds=1))
    assert problem(busy()) == (409, "stale")
    assert looks.busy == 0


def test_R51_run_and_arun_wait_but_not_in_a_callers_transaction(looks):
    """Of another database than the store's, which would be held just as long."""
    given = {"key": "k", "scope": "s", "store": "memory", "wait": 0.5}
    holder = idempotency.attempt(**given)
    elsewhere = Context()  # as if it were another request
    elsewhere.run(holder.__enter__)
    try:
        for run in (idempotency.run, async_to_sync(idempotency.arun)):
            looks.busy = 0
            with transaction.atomic(), pytest.raises(idempotency.InProgress):
                run(pytest.fail, **given)
            assert looks.busy == 0
            with pytest.raises(idempotency.InProgress):
                run(pytest.fail, **given)
            assert looks.busy > 0
    finally:
        elsewhere.run(holder.__exit__, None, None, None)


def test_R18_default_of_async_views_is_separate(in_loop):
    in_loop(lambda: send("async-function", {"then": "boom"}))

    assert Effect.objects.count() == 1
    assert IdempotencyRecord.objects.get().state == "FAILED"


@idempotent
def form(request):
    return HttpResponse(str(Effect.objects.create(name=request.POST["name"]).pk), status=201)


urlpatterns = [path("form/", form), path("impatient-form/", idempotent(wait=0)(form.__wrapped__))]


@pytest.mark.parametrize(
    ("address", "given", "prefer", "seconds"),
    [
        pytest.param("/form/", {}, None, 10, id="10 seconds"),
        pytest.param("/form/", {}, "wait=2", 2, id="less if preferred"),
        pytest.param("/form/", {"WAIT": 12}, None, 12, id="the policy's, longer"),
        pytest.param("/form/", {"WAIT": 0}, "wait=2", 0, id="not at all, whatever is preferred"),
        pytest.param("/impatient-form/", {"WAIT": 3}, None, 0, id="not at all on this view alone"),
    ],
)
def test_R89_wait_of_a_form(settings, policy, in_progress, waited, address, given, prefer, seconds):
    """A wait of 0 is one that is given: it turns off the wait of forms."""
    settings.ROOT_URLCONF = __name__
    policy(**given)
    api, body = api_for("wsgi", address), "idempotency_key=key-1&name=form"
    arguments = {"key": None, "content_type": "application/x-www-form-urlencoded"}
    api(body, **arguments)
    in_progress()

    answer = api(body, headers={"Prefer": prefer} if prefer else None, **arguments)

    assert problem(answer) == BUSY
    assert waited.seconds == pytest.approx(seconds)


# A caller's transaction.


@a_function
@pytest.mark.django_db
def test_R84_R51_waiter_in_a_TestCase_keeps_its_pooled_connection(
    busy, policy, waited, monkeypatch
):
    """Its blocks are no transaction of a caller, so it waits; all that the test wrote is there."""
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", True)
    policy(WAIT=3)

    assert problem(busy()) == BUSY

    assert waited.seconds == pytest.approx(3)
    assert connection.in_atomic_block
    assert not connection.closed_in_transaction
    assert IdempotencyRecord.objects.get().state == "IN_PROGRESS"
    assert Effect.objects.count() == 1


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_R51_waiter_gives_its_pooled_connection_back_and_closes_others_where_it_may(monkeypatch):
    """A file is no server's, and a thread has a connection with an age between requests, too."""
    _, other = both = connections["default"], connections["other"]
    for one, pooled in zip(both, (True, False), strict=True):
        monkeypatch.setitem(one.settings_dict["OPTIONS"], "pool", pooled)

    for vendor, age, closed in (
        ("sqlite", 0, False),
        ("postgresql", None, False),
        ("postgresql", 60, False),
        ("postgresql", 0, True),
    ):
        monkeypatch.setattr(other, "vendor", vendor)
        monkeypatch.setitem(other.settings_dict, "CONN_MAX_AGE", age)
        assert connections_to_let_go(close=False) == [both[0]]
        assert (other in connections_to_let_go(close=True)) is closed
