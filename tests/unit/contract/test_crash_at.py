"""crash_at: what an attempt leaves where it dies, in this process."""

from __future__ import annotations

import asyncio

import pytest
from django.http import Http404, HttpResponse
from django.test import RequestFactory

import django_idempotency as idempotency
from django_idempotency import signals
from django_idempotency.conf import store_for
from django_idempotency.http import idempotent
from django_idempotency.sweep import sweep
from django_idempotency.testing import FakeClock, crash_at, override_store
from django_idempotency.testing.crash import POINTS
from tests.app.models import Effect
from tests.services.processes import wait_until

MEMORY = "django_idempotency.stores.memory.MemoryStore"


@pytest.fixture(autouse=True)
def _project(settings, transactional_db):
    settings.IDEMPOTENCY = {"default": {}, "memory": {"BACKEND": MEMORY}}


def attempt(crash=None, error=None, **policy):
    def work(lease):
        Effect.objects.create(name="work")
        if crash and crash.point == "in_work":
            crash("anything")
        if error is not None:
            raise error
        return "done"

    return idempotency.run(work, key="k", scope="s", **policy)


def attempt_step(crash=None):
    def work(lease):
        lease.step("a", lambda: Effect.objects.create(name="step").pk)

    return idempotency.run(work, key="k", scope="s", transaction="steps")


def attempt_call(crash=None):
    def work(lease):
        lease.external("a", lambda key: Effect.objects.create(name="call").pk, uncertain="refuse")

    return idempotency.run(work, key="k", scope="s", transaction="steps")


def ask(crash=None, error=None):
    """Call a view that keeps whatever it answers."""

    def view(request):
        Effect.objects.create(name="view")
        if error is not None:
            raise error
        return HttpResponse("done")

    guard = idempotent(scope="django_idempotency.http.scopes.anyone", keep="stripe")
    return guard(view)(RequestFactory().post("/", headers={"Idempotency-Key": "k"}))


def left(store=None):
    states = [str(record.state) for record in (store or store_for()).browse().records]
    return Effect.objects.count(), states


DEAD = (0, ["IN_PROGRESS"])
#: What dies at each point, and what it leaves: its effects, and the states of records.
LEFT = {
    "before_claim": (attempt, (0, [])),
    "after_claim": (attempt, DEAD),
    "in_work": (attempt, DEAD),
    "before_intent": (attempt_call, DEAD),
    "after_intent": (attempt_call, DEAD),
    "before_note": (attempt_step, DEAD),
    "after_note": (attempt_step, DEAD),
    "after_work": (attempt, DEAD),
    "before_complete": (attempt, DEAD),
    "after_complete": (attempt, DEAD),
    "before_commit": (attempt, DEAD),
    "after_commit": (attempt, (1, ["COMPLETED"])),
    "after_rollback": (lambda crash: attempt(error=RuntimeError()), DEAD),
    "before_keep": (lambda crash: ask(error=Http404()), DEAD),
    "before_send": (ask, (1, ["COMPLETED"])),
    "in_sweep": (lambda crash: sweep(), (0, [])),
}


@pytest.mark.parametrize("point", LEFT)
def test_R65_attempt_dies_at_the_point(point):
    act, leaves = LEFT[point]
    with crash_at(point) as crash:
        act(crash)

    assert crash.happened
    assert left() == leaves


DYING = ["before_claim", "in_work", "before_complete", "after_complete"]


@pytest.mark.parametrize(
    ("mode", "point"),
    [
        *((mode, point) for mode in ("joined", "single", "separate") for point in DYING),
        *((mode, "after_commit") for mode in ("joined", "single")),
    ],
)
def test_the_dead_tell_of_no_end(mode, point, caplog):
    """As a process that was killed; another alias goes on."""
    caplog.set_level("INFO", "django_idempotency")
    told = []

    def note(alias, outcome, **told_too):
        told.append((alias, outcome))

    ends = [signals.completed, signals.failed, signals.released, signals.store_failed]
    for signal in ends:
        signal.connect(note)
    with crash_at(point) as crash:
        attempt(crash, transaction=mode)
    attempt(store="memory")
    for signal in ends:
        signal.disconnect(note)
    assert told == [("memory", "completed")]
    assert [line.alias for line in caplog.records] == ["memory"]


def test_R66_retry_takes_over_when_the_lease_has_lapsed_and_the_store_is_as_before():
    clock = FakeClock()
    with override_store("memory", clock=clock) as store:
        before = set(vars(store))
        with crash_at("before_complete"):
            attempt()
        assert set(vars(store)) == before
        with pytest.raises(idempotency.InProgress):
            attempt()
        clock.advance(61)

        assert not attempt().replayed
    assert Effect.objects.count() == 2


def test_R25_answer_that_was_never_sent_is_replayed():
    with crash_at("before_send"):
        ask()

    again = ask(error=RuntimeError())
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (200, "true")


def test_R69_leases_are_renewed_again_when_the_block_has_ended():
    def dies(lease):
        wait_until(lambda: crash.happened, seconds=60, what="a renewal")

    def is_renewed(lease):
        until = lease.lease_until
        renewed = lambda: until < store.get(lease.record_id).lease_until  # noqa: E731
        wait_until(renewed, seconds=60, what="a renewal")

    with override_store("memory") as store:
        with crash_at("in_renewal") as crash:
            idempotency.run(dies, key="k", scope="s", lease=0.3)
        assert left() == DEAD

        idempotency.run(is_renewed, key="another", scope="s", lease=0.3)


@pytest.mark.parametrize("point", ["after_claim", "in_work", "before_complete", "after_complete"])
def test_coroutine_dies(point):
    async def work(lease):
        if point == "in_work":
            crash()
        return "done"

    with override_store("memory"):
        with crash_at(point) as crash:
            asyncio.run(idempotency.arun(work, key="k", scope="s"))

        assert left() == (0, ["COMPLETED" if point == "after_complete" else "IN_PROGRESS"])


def test_another_alias_dies():
    with crash_at("after_claim", store="memory") as crash:
        attempt()
        attempt(store="memory")

    assert crash.happened
    assert left() == (1, ["COMPLETED"])


@pytest.mark.parametrize(
    ("point", "options", "act"),
    [
        ("before_keep", {}, ask),  # the answer is the work's own
        ("before_send", {"store": "memory"}, ask),
        ("after_commit", {}, lambda: attempt(transaction="separate")),
    ],
)
def test_point_that_is_not_passed_fails(point, options, act):
    told = pytest.raises(AssertionError, match=f"did not pass the point '{point}'")
    with told, crash_at(point, **options):
        act()


def test_other_exceptions_pass():
    with pytest.raises(ZeroDivisionError), crash_at("after_commit"):
        attempt(transaction="separate", error=ZeroDivisionError())


def test_unknown_point_is_told_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"'before_lunch'.*before_claim, after_claim"):
        crash_at("before_lunch")
    assert {*LEFT, "in_renewal"} == set(POINTS)
