"""R51, R52: duplicates that wait for the answer of the first."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.urls import path

import django_idempotency as idempotency
from django_idempotency import InProgress as Busy
from django_idempotency import engine, waiting
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, SetPolicy
from tests.unit.views.conftest import Looks, api_for, sending, together
from tests.unit.views.urls import ASYNC, FREE, GUARDED
from tests.unit.views.work import PAUSED, Gate

pytestmark = pytest.mark.django_db(transaction=True)

LONG = 30
SYNC = [name for name in (*GUARDED, *FREE) if name not in ASYNC]


@pytest.fixture(params=["joined", "separate"])
def seen_mode(request: pytest.FixtureRequest, policy: SetPolicy) -> str:
    """The modes in which others see the record while the work goes on, with a long wait."""
    policy(TRANSACTION=request.param, WAIT=LONG)
    return str(request.param)


class TestSync:
    """Each request on a thread of its own, as under a WSGI server."""

    @pytest.mark.parametrize("kind", SYNC, indirect=True)
    def test_R51_duplicates_wait_for_the_answer(
        self, kind: str, seen_mode: str, gate: Gate, looks: Looks, runs: list[str]
    ) -> None:
        with together(sending(kind)) as first:
            assert gate.reached.wait(10)
            with together(*[sending(kind)] * 3) as others:
                looks.wait_for(6)
                gate.open.set()

        assert (first[0].status_code, replayed(first[0])) == (201, False)
        assert [(other.status_code, replayed(other)) for other in others] == [(201, True)] * 3
        assert {other.content for other in others} == {first[0].content}
        assert len(runs) == Effect.objects.count() == 1

    @pytest.mark.leg("postgres18", "postgres16")  # SQLite's own queue makes them wait
    def test_R51_single_waits_as_well(
        self, policy: SetPolicy, gate: Gate, looks: Looks, runs: list[str]
    ) -> None:
        policy(TRANSACTION="single", WAIT=LONG)
        with together(sending("function")) as first:
            assert gate.reached.wait(10)
            with together(*[sending("function")] * 3) as others:
                looks.wait_for(6)
                gate.open.set()

        assert [replayed(answer) for answer in (*first, *others)] == [False, True, True, True]
        assert len(runs) == 1

    def test_R52_winner_fails_and_one_waiter_owns(
        self, seen_mode: str, gate: Gate, looks: Looks, runs: list[str]
    ) -> None:
        gate.orders = ["boom"]
        with together(sending("function", raises=False)) as first:
            assert gate.reached.wait(10)
            with together(*[sending("function", raises=False)] * 4) as others:
                looks.wait_for(8)
                gate.open.set()

        assert first[0].status_code == 500
        assert [other.status_code for other in others] == [201] * 4
        assert sorted(replayed(other) for other in others) == [False, True, True, True]
        assert len({other.content for other in others}) == 1
        assert len(runs) == 2
        assert Effect.objects.count() == (2 if seen_mode == "separate" else 1)

    def test_R52_winner_releases_and_one_waiter_owns(
        self, seen_mode: str, gate: Gate, looks: Looks, runs: list[str]
    ) -> None:
        gate.orders = ["missing"]
        with together(sending("function")) as first:
            assert gate.reached.wait(10)
            with together(*[sending("function", raises=False)] * 4) as others:
                looks.wait_for(8)
                gate.open.set()

        assert first[0].status_code == 404
        assert sorted(replayed(other) for other in others) == [False, True, True, True]
        assert len(runs) == 2

    def test_R38_R51_mismatch_does_not_wait(
        self, seen_mode: str, gate: Gate, runs: list[str]
    ) -> None:
        with together(sending("function")):
            assert gate.reached.wait(10)
            started = time.monotonic()
            answer = sending("function", {"name": "other"})()
            gate.open.set()

        assert problem(answer) == (422, "idempotency_key_reused")
        assert time.monotonic() - started < LONG / 2

    def test_R51_run_waits(self, gate: Gate, looks: Looks) -> None:
        def work(lease: Any) -> str:
            gate.passed()
            return Effect.objects.create(name="x").name

        def call() -> Any:
            return idempotency.run(work, key="k", scope="s", wait=LONG)

        with together(call) as first:
            assert gate.reached.wait(10)
            with together(*[call] * 3) as others:
                looks.wait_for(6)
                gate.open.set()

        assert [outcome.replayed for outcome in (*first, *others)] == [False, True, True, True]
        assert {outcome.result for outcome in others} == {"x"}
        assert Effect.objects.count() == 1


class TestAsync:
    """Requests on one loop, each with the ThreadSensitiveContext of an ASGI server."""

    @staticmethod
    async def send(kind: str, body: Any = PAUSED) -> Any:
        async with ThreadSensitiveContext():
            try:
                return await AsyncClient(raise_request_exception=False).post(
                    f"/{kind}/",
                    json.dumps(body),
                    content_type="application/json",
                    headers={"Idempotency-Key": "key-1", "X-User": "alice"},
                )
            finally:
                await sync_to_async(connections.close_all)()

    async def race(self, kind: str, gate: Gate, looks: Looks, *, number: int) -> Any:
        first = asyncio.create_task(self.send(kind))
        assert await asyncio.to_thread(gate.reached.wait, 10)
        others = [asyncio.create_task(self.send(kind)) for _ in range(number)]
        await asyncio.to_thread(looks.wait_for, 2 * number)
        gate.open.set()
        return await first, await asyncio.gather(*others)

    @pytest.mark.parametrize("kind", [*sorted(ASYNC), "function", "drf"], indirect=True)
    def test_R51_duplicates_wait_for_the_answer(
        self, kind: str, seen_mode: str, gate: Gate, looks: Looks, runs: list[str], in_loop: Any
    ) -> None:
        first, others = in_loop(lambda: self.race(kind, gate, looks, number=3))

        assert (first.status_code, replayed(first)) == (201, False)
        assert [(other.status_code, replayed(other)) for other in others] == [(201, True)] * 3
        assert {other.content for other in others} == {first.content}
        assert len(runs) == Effect.objects.count() == 1

    @pytest.mark.parametrize("order", ["boom", "denied"])
    def test_R52_winner_fails_and_one_waiter_owns(
        self,
        seen_mode: str,
        gate: Gate,
        looks: Looks,
        runs: list[str],
        in_loop: Any,
        order: str,
    ) -> None:
        gate.orders = [order]

        first, others = in_loop(lambda: self.race("async-function", gate, looks, number=4))

        assert first.status_code == {"boom": 500, "denied": 403}[order]
        assert [other.status_code for other in others] == [201] * 4
        assert sorted(replayed(other) for other in others) == [False, True, True, True]
        assert len(runs) == 2

    def test_R51_waiter_leaves_the_loop_free(
        self, seen_mode: str, in_progress: InProgress, in_loop: Any, policy: SetPolicy
    ) -> None:
        """A waiter on the loop does not keep others from being served there."""
        api_for("wsgi", "/async-function/")({"name": "first"})
        in_progress()

        async def main() -> Any:
            waiter = asyncio.create_task(self.send("async-function", {"name": "first"}))
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


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    started = time.monotonic()
    return call(), time.monotonic() - started


def test_R51_end_of_the_patience_is_409(busy: Api, policy: SetPolicy) -> None:
    policy(WAIT=0.4)

    answer, seconds = timed(busy)

    assert problem(answer) == (409, "in_progress")
    assert int(answer.headers["Retry-After"]) == 1
    assert 0.4 <= seconds < LONG / 2
    assert Effect.objects.count() == 1


@pytest.mark.parametrize("kind", ["function", "async-function", "drf"], indirect=True)
def test_R51_no_wait_by_default(busy: Api, looks: Looks) -> None:
    assert problem(busy()) == (409, "in_progress")
    assert problem(busy(headers={"Prefer": "wait=5"})) == (409, "in_progress")
    assert looks.busy == 0


@pytest.mark.parametrize("kind", ["function", "async-function", "drf"], indirect=True)
@pytest.mark.parametrize(
    "prefer", ["wait=0", "respond-async, wait=0", 'wait="0"', "WAIT=0", "return=minimal;wait=0"]
)
def test_R51_prefer_shortens(busy: Api, policy: SetPolicy, looks: Looks, prefer: str) -> None:
    policy(WAIT=LONG)

    assert problem(busy(headers={"Prefer": prefer})) == (409, "in_progress")
    assert looks.busy == 0


@pytest.mark.parametrize("kind", ["function", "async-function", "drf"], indirect=True)
def test_R51_prefer_lengthens_no_further_than_the_policy(busy: Api, policy: SetPolicy) -> None:
    policy(WAIT=0.3)

    answer, seconds = timed(lambda: busy(headers={"Prefer": "wait=1000"}))

    assert problem(answer) == (409, "in_progress")
    assert 0.3 <= seconds < LONG / 2


@pytest.mark.parametrize("kind", ["function"], indirect=True)
@pytest.mark.parametrize("prefer", ["wait", "wait=", "wait=-1", "wait=x", "await=0", ""])
def test_R51_prefer_that_says_no_number_changes_nothing(
    busy: Api, policy: SetPolicy, prefer: str
) -> None:
    policy(WAIT=0.3)

    answer, seconds = timed(lambda: busy(headers={"Prefer": prefer}))

    assert problem(answer) == (409, "in_progress")
    assert seconds >= 0.3


@pytest.mark.parametrize("kind", ["function"], indirect=True)
def test_R71_R51_stale_is_not_waited_for(
    api: Api, in_progress: InProgress, policy: SetPolicy, looks: Looks
) -> None:
    policy(ON_STALE="refuse", WAIT=LONG)
    api()
    in_progress(lease=timedelta(microseconds=1))

    assert problem(api()) == (409, "stale")
    assert looks.busy == 0


def test_R51_lease_that_lapses_meanwhile_is_taken_over(
    policy: SetPolicy, in_progress: InProgress, runs: list[str]
) -> None:
    """Its owner is gone: the waiter becomes the owner."""
    policy(WAIT=LONG)
    api = api_for("wsgi", "/function/")
    api()
    in_progress(lease=timedelta(seconds=0.5))

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


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only goes on while a duplicate waits: ``waited.seconds``."""
    clock = SimpleNamespace(seconds=0.0)

    def sleep(seconds: float) -> None:
        clock.seconds += seconds

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    monkeypatch.setattr(engine, "time", SimpleNamespace(sleep=sleep))
    return clock


@pytest.mark.parametrize(
    ("address", "given", "prefer", "seconds"),
    [
        pytest.param("/form/", {}, None, 10, id="10 seconds"),
        pytest.param("/form/", {"LEASE": 77}, None, 10, id="10 seconds, other fields given"),
        pytest.param("/form/", {}, "wait=2", 2, id="less if preferred"),
        pytest.param("/form/", {"WAIT": 3}, None, 3, id="the policy's"),
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


@pytest.mark.parametrize("kind", ["function", "drf"], indirect=True)
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
