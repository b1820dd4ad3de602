"""R51, R52: duplicates that wait for the answer of the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.urls import path

import django_idempotency as idempotency
from django_idempotency import InProgress as Busy
from django_idempotency import engine
from django_idempotency.engine import transactions
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, SetPolicy
from tests.unit.views.conftest import Looks, api_for, sending, together
from tests.unit.views.test_async import send
from tests.unit.views.work import Gate

pytestmark = pytest.mark.django_db(transaction=True)

LONG = 30


@pytest.fixture
def seen_mode(request: pytest.FixtureRequest, policy: SetPolicy) -> str:
    """A mode in which others see the record while the work goes on, with a long wait."""
    mode = getattr(request, "param", "joined")
    policy(TRANSACTION=mode, WAIT=LONG)
    return str(mode)


def pairs(name: str, *rows: str) -> Any:
    """Parametrise with a kind of view, or what its winner does, and how its work commits."""
    indirect = [word for word in (name, "seen_mode") if word != "order"]
    return pytest.mark.parametrize((name, "seen_mode"), [*map(str.split, rows)], indirect=indirect)


def race(call: Callable[[], Any], gate: Gate, looks: Looks, *, number: int = 3) -> list[Any]:
    """Return the owner's answer, and those of duplicates that come while it is at work."""
    with together(call) as first:
        assert gate.reached.wait(10)
        with together(*[call] * number) as others:
            looks.wait_for(2 * number)
            gate.open.set()
    return [*first, *others]


class TestSync:
    """Each request on a thread of its own, as under a WSGI server."""

    @pairs(
        "kind",
        "function joined",
        "class separate",
        "drf joined",
        "above-api-view separate",
        "free-function joined",
    )
    def test_R51_duplicates_wait_for_the_answer(
        self, kind: str, seen_mode: str, gate: Gate, looks: Looks, runs: list[str]
    ) -> None:
        answers = race(sending(kind), gate, looks)

        assert [answer.status_code for answer in answers] == [201] * 4
        assert [replayed(answer) for answer in answers] == [False, True, True, True]
        assert len({answer.content for answer in answers}) == 1
        assert len(runs) == Effect.objects.count() == 1

    @pairs("order", "boom joined", "boom separate", "missing joined")
    def test_R52_winner_fails_and_one_waiter_owns(
        self, order: str, seen_mode: str, gate: Gate, looks: Looks, runs: list[str]
    ) -> None:
        gate.orders = [order]

        first, *others = race(sending("function", raises=False), gate, looks, number=4)

        assert first.status_code == {"boom": 500, "missing": 404}[order]
        assert [other.status_code for other in others] == [201] * 4
        assert sorted(replayed(other) for other in others) == [False, True, True, True]
        assert len({other.content for other in others}) == 1
        assert len(runs) == 2
        assert Effect.objects.count() == (2 if seen_mode == "separate" else 1)

    def test_R51_run_waits(self, gate: Gate, looks: Looks) -> None:
        def work(lease: Any) -> str:
            gate.passed()
            return Effect.objects.create(name="x").name

        outcomes = race(lambda: idempotency.run(work, key="k", scope="s", wait=LONG), gate, looks)

        assert [outcome.replayed for outcome in outcomes] == [False, True, True, True]
        assert {outcome.result for outcome in outcomes} == {"x"}
        assert Effect.objects.count() == 1


class TestAsync:
    """Requests on one loop, each with the ThreadSensitiveContext of an ASGI server."""

    async def race(self, kind: str, gate: Gate, looks: Looks, *, number: int) -> Any:
        first = asyncio.create_task(send(kind))
        assert await asyncio.to_thread(gate.reached.wait, 10)
        others = [asyncio.create_task(send(kind)) for _ in range(number)]
        await asyncio.to_thread(looks.wait_for, 2 * number)
        gate.open.set()
        return await first, await asyncio.gather(*others)

    @pairs("kind", "async-function joined", "free-async-class separate", "drf joined")
    def test_R51_duplicates_wait_for_the_answer(
        self, kind: str, seen_mode: str, gate: Gate, looks: Looks, runs: list[str], in_loop: Any
    ) -> None:
        first, others = in_loop(lambda: self.race(kind, gate, looks, number=3))

        assert (first.status_code, replayed(first)) == (201, False)
        assert [(other.status_code, replayed(other)) for other in others] == [(201, True)] * 3
        assert {other.content for other in others} == {first.content}
        assert len(runs) == Effect.objects.count() == 1

    @pairs("order", "boom joined", "denied separate")
    def test_R52_winner_fails_and_one_waiter_owns(
        self,
        order: str,
        seen_mode: str,
        gate: Gate,
        looks: Looks,
        runs: list[str],
        in_loop: Any,
    ) -> None:
        gate.orders = [order]

        first, others = in_loop(lambda: self.race("async-function", gate, looks, number=4))

        assert first.status_code == {"boom": 500, "denied": 403}[order]
        assert [other.status_code for other in others] == [201] * 4
        assert sorted(replayed(other) for other in others) == [False, True, True, True]
        assert len(runs) == 2

    def test_R51_waiter_leaves_the_loop_free(
        self,
        seen_mode: str,
        in_progress: InProgress,
        in_loop: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """It pauses by the loop, and so does not keep others from being served there."""
        monkeypatch.setattr(engine, "time", None)
        api_for("wsgi", "/async-function/")({"name": "first"})
        in_progress()

        async def main() -> Any:
            waiter = asyncio.create_task(send("async-function", {"name": "first"}))
            done, _ = await asyncio.wait([waiter], timeout=0.2)
            free = await AsyncClient().get("/async-function/")
            still_waiting = not waiter.done()
            waiter.cancel()
            await asyncio.wait([waiter])
            return done, free.status_code, still_waiting

        assert in_loop(main) == (set(), 200, True)

    def test_R51_arun_waits(self, gate: Gate, looks: Looks, in_loop: Any) -> None:
        async def work(lease: Any) -> str:
            await gate.apassed()
            return (await Effect.objects.acreate(name="x")).name

        async def main() -> Any:
            def call() -> Any:
                return asyncio.create_task(idempotency.arun(work, key="k", scope="s", wait=LONG))

            first = call()
            assert await asyncio.to_thread(gate.reached.wait, 10)
            others = [call() for _ in range(3)]
            await asyncio.to_thread(looks.wait_for, 6)
            gate.open.set()
            return [outcome.replayed for outcome in await asyncio.gather(first, *others)]

        assert in_loop(main) == [False, True, True, True]
        assert Effect.objects.count() == 1


# The patience.


@pytest.fixture
def busy(api: Api, in_progress: InProgress) -> Api:
    """A view whose record another attempt has, for as long as the test takes."""
    api()
    in_progress()
    return api


a_function = pytest.mark.parametrize("kind", ["function"], indirect=True)
#: Each has a guard, or a way of waiting, of its own.
each_guard = pytest.mark.parametrize("kind", ["function", "async-function", "drf"], indirect=True)


@each_guard
def test_R51_end_of_the_patience_is_409(busy: Api, policy: SetPolicy) -> None:
    """And a longer one that is preferred changes nothing."""
    policy(WAIT=0.2)
    started = time.monotonic()

    answer = busy(headers={"Prefer": "wait=1000"})

    assert problem(answer) == (409, "in_progress")
    assert int(answer.headers["Retry-After"]) == 1
    assert 0.2 <= time.monotonic() - started < LONG / 2
    assert Effect.objects.count() == 1


@each_guard
def test_R51_no_wait_by_default(busy: Api, looks: Looks) -> None:
    assert problem(busy()) == (409, "in_progress")
    assert problem(busy(headers={"Prefer": "wait=5"})) == (409, "in_progress")
    assert looks.busy == 0


@a_function
def test_R51_prefer_shortens_if_it_says_a_number(
    busy: Api, policy: SetPolicy, waited: SimpleNamespace
) -> None:
    policy(WAIT=LONG)
    none = ("wait=0", "respond-async, wait=0", 'wait="0"', "WAIT=0", "return=minimal;wait=0")
    all_of_it = ("wait", "wait=", "wait=-1", "wait=x", "await=0", "")
    seconds = {**dict.fromkeys(none, 0), "wait=3": 3, **dict.fromkeys(all_of_it, LONG)}
    for prefer, expected in seconds.items():
        waited.seconds = 0.0

        assert problem(busy(headers={"Prefer": prefer})) == (409, "in_progress")
        assert waited.seconds == pytest.approx(expected), prefer


@a_function
def test_R38_R51_mismatch_does_not_wait(busy: Api, policy: SetPolicy, looks: Looks) -> None:
    policy(WAIT=LONG)

    assert problem(busy({"name": "other"})) == (422, "idempotency_key_reused")
    assert looks.busy == 0


@a_function
def test_R71_R51_stale_is_not_waited_for(
    api: Api, in_progress: InProgress, policy: SetPolicy, looks: Looks
) -> None:
    policy(ON_STALE="refuse", WAIT=LONG)
    api()
    in_progress(lease=timedelta(microseconds=1))

    assert problem(api()) == (409, "stale")
    assert looks.busy == 0


@a_function
def test_R51_lease_that_lapses_meanwhile_is_taken_over(
    api: Api, policy: SetPolicy, in_progress: InProgress, runs: list[str]
) -> None:
    """Its owner is gone: the waiter becomes the owner."""
    policy(WAIT=LONG)
    api()
    in_progress(lease=timedelta(seconds=0.2))

    answer = api()

    assert (answer.status_code, replayed(answer)) == (201, False)
    assert len(runs) == 2


# Forms.


@idempotent
def form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(Effect.objects.create(name=request.POST["name"]).pk), status=201)


@idempotent(wait=0)
def impatient_form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(Effect.objects.create(name=request.POST["name"]).pk), status=201)


urlpatterns = [path("form/", form), path("impatient-form/", impatient_form)]


@pytest.mark.parametrize(
    ("address", "given", "prefer", "seconds"),
    [
        pytest.param("/form/", {}, None, 10, id="10 seconds"),
        pytest.param("/form/", {"LEASE": 77}, None, 10, id="10 seconds, other fields given"),
        pytest.param("/form/", {}, "wait=2", 2, id="less if preferred"),
        pytest.param("/form/", {"WAIT": 3}, None, 3, id="the policy's"),
        pytest.param("/form/", {"WAIT": 30}, None, 30, id="the policy's, longer"),
        pytest.param("/form/", {"WAIT": 0}, None, 0, id="not at all"),
        pytest.param("/form/", {"WAIT": timedelta(0)}, None, 0, id="not at all, as a timedelta"),
        pytest.param("/form/", {"WAIT": 0}, "wait=2", 0, id="not at all, whatever is preferred"),
        pytest.param("/impatient-form/", {}, None, 0, id="not at all on this view"),
        pytest.param("/impatient-form/", {"WAIT": 3}, None, 0, id="not at all on this view alone"),
    ],
)
def test_R89_wait_of_a_form(
    settings: Any,
    policy: SetPolicy,
    in_progress: InProgress,
    waited: SimpleNamespace,
    address: str,
    given: dict[str, Any],
    prefer: str | None,
    seconds: float,
) -> None:
    """A wait of 0 is one that is given: it turns off the wait of forms."""
    settings.ROOT_URLCONF = "tests.unit.views.test_waiting"
    policy(**given)
    api, body = api_for("wsgi", address), "idempotency_key=key-1&name=form"
    arguments: dict[str, Any] = {"key": None, "content_type": "application/x-www-form-urlencoded"}
    api(body, **arguments)
    in_progress()

    answer = api(body, headers={"Prefer": prefer} if prefer else None, **arguments)

    assert problem(answer) == (409, "in_progress")
    assert waited.seconds == pytest.approx(seconds)


# A caller's transaction.


@a_function
def test_R51_no_wait_in_a_callers_transaction(busy: Api, policy: SetPolicy, looks: Looks) -> None:
    policy(WAIT=LONG)

    with transaction.atomic():
        assert problem(busy()) == (409, "in_progress")

    assert looks.busy == 0
    assert IdempotencyRecord.objects.get().state == "IN_PROGRESS"


def test_R51_run_does_not_wait_in_a_callers_transaction(gate: Gate, looks: Looks) -> None:
    def first() -> Any:
        return idempotency.run(
            lambda lease: gate.passed(), key="k", scope="s", transaction="separate"
        )

    def never(lease: Any) -> None:
        pytest.fail("ran")

    with together(first):
        assert gate.reached.wait(10)
        with transaction.atomic(), pytest.raises(Busy):
            idempotency.run(never, key="k", scope="s", wait=LONG)
        with transaction.atomic(), pytest.raises(Busy):
            async_to_sync(idempotency.arun)(never, key="k", scope="s", wait=LONG)  # type: ignore[arg-type]
        gate.open.set()

    assert looks.busy == 0


def test_R51_no_wait_in_the_transaction_of_another_database(gate: Gate, looks: Looks) -> None:
    """It would be held just as long."""

    def first() -> Any:
        return idempotency.run(
            lambda lease: gate.passed(), key="k", scope="s", store="memory", wait=LONG
        )

    with together(first):
        assert gate.reached.wait(10)
        with transaction.atomic(), pytest.raises(Busy):
            idempotency.run(lambda lease: None, key="k", scope="s", store="memory", wait=LONG)
        gate.open.set()


@a_function
@pytest.mark.django_db
def test_R84_R51_waiter_in_a_TestCase_keeps_its_pooled_connection(
    busy: Api, policy: SetPolicy, waited: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks are no transaction of a caller, so it waits; all that the test wrote is there."""
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", True)
    policy(WAIT=3)

    assert problem(busy()) == (409, "in_progress")

    assert waited.seconds == pytest.approx(3)
    assert connection.in_atomic_block
    assert not connection.closed_in_transaction
    assert IdempotencyRecord.objects.get().state == "IN_PROGRESS"
    assert Effect.objects.count() == 1


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_R51_waiter_gives_its_pooled_connection_back_and_keeps_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = connections["default"], connections["other"]
    for one, pooled in zip(both, (True, False), strict=True):
        one.ensure_connection()
        monkeypatch.setitem(one.settings_dict["OPTIONS"], "pool", pooled)

    transactions.rest()

    assert [one.connection is None for one in both] == [True, False]
