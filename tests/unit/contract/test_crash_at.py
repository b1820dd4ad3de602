"""crash_at: what an attempt leaves where it dies, in this process."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory

import django_idempotency as idempotency
from django_idempotency import keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.conf import store_for
from django_idempotency.http import idempotent
from django_idempotency.leases import Lease
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.sweep import sweep
from django_idempotency.testing import FakeClock, crash_at, override_store
from django_idempotency.testing.crash import POINTS
from tests.app.models import Effect
from tests.services.processes import wait_until

MEMORY = "django_idempotency.stores.memory.MemoryStore"
#: What is left behind where an attempt dies: its effects, and the state of its record.
LEFT = {
    "before_claim": (0, None),
    "after_claim": (0, "IN_PROGRESS"),
    "in_work": (0, "IN_PROGRESS"),
    "after_work": (0, "IN_PROGRESS"),
    "before_complete": (0, "IN_PROGRESS"),
    "after_complete": (0, "IN_PROGRESS"),
    "before_commit": (0, "IN_PROGRESS"),
    "after_commit": (1, "COMPLETED"),
}


@pytest.fixture(autouse=True)
def _project(settings: Any, transactional_db: None) -> None:
    settings.IDEMPOTENCY = {"default": {}}


def attempt(*, mode: str | None = None, crash: Any = None, error: Exception | None = None) -> Any:
    def work(lease: Any) -> str:
        Effect.objects.create(name="work")
        if crash is not None and crash.point == "in_work":
            crash("anything")
        if error is not None:
            raise error
        return "done"

    policy = {} if mode is None else {"transaction": mode}
    return idempotency.run(work, key="k", scope="s", **policy)


def state() -> str | None:
    record_id = keys.record_id("call", "s", "k")
    record = store_for().get(record_id)
    return None if record is None else str(record.state)


def states() -> list[str]:
    return [str(record.state) for record in store_for().browse().records]


@pytest.mark.parametrize(("point", "left"), LEFT.items())
def test_R65_attempt_dies_at_the_point(point: str, left: tuple[int, str | None]) -> None:
    with crash_at(point) as crash:
        attempt(crash=crash)

    assert crash.happened
    assert (Effect.objects.count(), state()) == left


@pytest.mark.parametrize("point", ["after_work", "after_rollback"])
def test_work_that_fails_dies_after_it(point: str) -> None:
    with crash_at(point):
        attempt(error=RuntimeError())

    assert (Effect.objects.count(), state()) == (0, "IN_PROGRESS")


def test_R66_retry_takes_over_when_the_lease_has_lapsed() -> None:
    clock = FakeClock()
    with override_store("memory", clock=clock):
        with crash_at("before_complete"):
            attempt()
        with pytest.raises(idempotency.InProgress):
            attempt()
        clock.advance(61)

        assert not attempt().replayed

    assert Effect.objects.count() == 2


def send(error: Exception | None = None) -> HttpResponseBase:
    """Send a request to a view that keeps whatever it answers."""

    def view(request: HttpRequest) -> HttpResponse:
        Effect.objects.create(name="view")
        if error is not None:
            raise error
        return HttpResponse("done")

    guarded = idempotent(scope="django_idempotency.http.scopes.anyone", keep="stripe")(view)
    request = RequestFactory().post("/", headers={"Idempotency-Key": "k"})
    response: HttpResponseBase = guarded(request)
    return response


def test_R57_answer_made_of_an_exception_dies_before_it_is_kept() -> None:
    with crash_at("before_keep") as crash:
        send(error=Http404())

    assert crash.happened
    assert (Effect.objects.count(), states()) == (0, ["IN_PROGRESS"])


def test_before_keep_is_not_passed_by_an_answer_of_the_works_own() -> None:
    with pytest.raises(AssertionError, match="did not pass"), crash_at("before_keep"):
        send()


def test_R25_answer_that_was_never_sent_is_replayed() -> None:
    with crash_at("before_send") as crash:
        send()

    assert crash.happened
    assert (Effect.objects.count(), states()) == (1, ["COMPLETED"])
    again = send(error=RuntimeError())
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (200, "true")


def test_answer_of_another_alias_is_sent(settings: Any) -> None:
    settings.IDEMPOTENCY = {"default": {}, "memory": {"BACKEND": MEMORY}}

    with (
        pytest.raises(AssertionError, match="did not pass"),
        crash_at("before_send", store="memory"),
    ):
        send()


def test_R69_leases_are_renewed_again_when_the_block_has_ended() -> None:
    def dies(lease: Lease) -> None:
        wait_until(lambda: crash.happened, seconds=20, what="a renewal")

    def is_renewed(lease: Lease) -> None:
        assert lease.lease_until is not None
        until = lease.lease_until
        wait_until(lambda: until < renewed_until(store, lease), seconds=20, what="a renewal")

    with override_store("memory") as store:
        with crash_at("in_renewal") as crash:
            idempotency.run(dies, key="k", scope="s", lease=0.3)
        assert [str(record.state) for record in store.browse().records] == ["IN_PROGRESS"]

        idempotency.run(is_renewed, key="another", scope="s", lease=0.3)


def renewed_until(store: BaseStore, lease: Lease) -> datetime:
    record = store.get(lease.record_id)
    assert record is not None
    assert record.lease_until is not None
    return record.lease_until


def test_sweep_dies() -> None:
    with crash_at("in_sweep") as crash:
        sweep()

    assert crash.happened


@pytest.mark.parametrize("point", ["before_keep", "before_send"])
def test_coroutine_of_a_view_dies(point: str) -> None:
    @idempotent(scope="django_idempotency.http.scopes.anyone", keep="stripe")
    async def view(request: HttpRequest) -> HttpResponse:
        if point == "before_keep":
            raise Http404
        return HttpResponse("done")

    request = RequestFactory().post("/", headers={"Idempotency-Key": "k"})
    with override_store("memory") as store:
        with crash_at(point):
            asyncio.run(view(request))

        [record] = store.browse().records
    assert record.state == ("COMPLETED" if point == "before_send" else "IN_PROGRESS")


@pytest.mark.parametrize("point", ["after_claim", "in_work", "before_complete", "after_complete"])
def test_coroutine_dies(point: str) -> None:
    async def work(lease: Any) -> str:
        if point == "in_work":
            crash()
        return "done"

    with override_store("memory"):
        with crash_at(point) as crash:
            asyncio.run(idempotency.arun(work, key="k", scope="s"))

        assert state() == ("COMPLETED" if point == "after_complete" else "IN_PROGRESS")


class OwnTwins(MemoryStore):
    """A store whose coroutines do not go through its other operations."""

    async def aclaim(self, request: ClaimRequest) -> Lease | Record:
        return MemoryStore.claim(self, request)

    async def acomplete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        return MemoryStore.complete(self, lease, result, retention=retention)


@pytest.mark.parametrize("point", ["before_claim", "after_claim", "before_complete"])
def test_coroutine_dies_on_a_store_with_twins_of_its_own(point: str) -> None:
    async def work(lease: Any) -> str:
        return "done"

    with override_store(OwnTwins()):
        with crash_at(point):
            asyncio.run(idempotency.arun(work, key="k", scope="s"))

        assert state() == (None if point == "before_claim" else "IN_PROGRESS")


def test_another_alias_dies(settings: Any) -> None:
    settings.IDEMPOTENCY = {"default": {}, "memory": {"BACKEND": MEMORY}}

    with crash_at("after_claim", store="memory") as crash:
        attempt()
        idempotency.run(lambda lease: 1, key="k", scope="s", store="memory")

    assert crash.happened
    assert state() == "COMPLETED"


def test_store_is_as_before_when_the_block_has_ended() -> None:
    with override_store("memory") as store:
        before = dict(vars(store))
        with crash_at("after_claim"):
            attempt()

        assert vars(store) == before


def test_point_that_is_not_passed_fails() -> None:
    with (
        pytest.raises(AssertionError, match=r"did not pass the point 'after_commit'"),
        crash_at("after_commit"),
    ):
        attempt(mode="separate")


def test_other_exceptions_pass() -> None:
    with pytest.raises(ZeroDivisionError), crash_at("after_commit"):
        attempt(mode="separate", error=ZeroDivisionError())


def test_unknown_point_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"'before_lunch'.*before_claim, after_claim"):
        crash_at("before_lunch")


def test_every_point_is_tested() -> None:
    elsewhere = {"after_rollback", "before_keep", "before_send", "in_renewal", "in_sweep"}
    assert {*LEFT, *elsewhere} == set(POINTS)
