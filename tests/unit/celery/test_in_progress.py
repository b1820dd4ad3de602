"""A duplicate that comes while the first is at work, and an owner that was superseded (C6)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock
from uuid import uuid4

import pytest
from celery import Task
from celery.exceptions import Ignore, Retry, SoftTimeLimitExceeded
from django.core.management import call_command

from django_idempotency import InProgress, LeaseLost, StoreError, current, signals
from django_idempotency.claims import Resolution
from django_idempotency.conf import store_for
from django_idempotency.context import running
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.contrib.celery.waits import DeliveryWaiter
from django_idempotency.stores.memory import MemoryStore
from tests.unit.celery.conftest import Done

pytestmark = pytest.mark.usefixtures("memory")


class Meeting:
    """A task in whose first run the test does something `meanwhile`: deliver a duplicate, say."""

    def __init__(self, local, *, task=None, **options):
        self.local = local
        self.runs = 0
        self.meanwhile = self.met = None

        @local.app.task(bind=True, name="meeting", max_retries=3, **(task or {}))
        @idempotent_task(**options)
        def work(task, order_id):
            self.runs += 1
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                self.met = meanwhile()
            return f"run {self.runs}"

        self.task = work
        self.message = local.send(work, 1)

    def deliver(self, meanwhile):
        self.meanwhile = meanwhile
        return self.local.deliver(self.message)

    def duplicate(self, *, after=lambda: None):
        """Deliver the message, and in the middle of it a duplicate; how the latter ended."""
        self.deliver(lambda: after() or self.local.deliver(self.message))
        assert isinstance(self.met, Done)
        return self.met


@pytest.mark.parametrize(
    ("ran", "countdown"),
    [
        pytest.param(0.03, 1, id="1 s at least"),
        pytest.param(40, 40, id="as long as the first has been running"),
    ],
)
def test_C6_it_is_sent_again_after_as_long_as_the_first_has_run(local, clock, ran, countdown):
    """It is no retry of the task; what comes after it is in tests/acceptance/celery."""
    meeting = Meeting(local)
    meeting.message = replace(meeting.message, headers={**meeting.message.headers, "retries": 3})

    done = meeting.duplicate(after=lambda: clock.advance(ran) and None)
    [again] = local.sent()
    assert again.headers["retries"] == 3
    assert (done.state, done.value.when) == ("RETRY", pytest.approx(countdown))
    assert again.headers["eta"]
    assert (again.id, again.args) == (meeting.message.id, [1])
    assert local.deliver(again) == Done("SUCCESS", "run 1")
    assert meeting.runs == 1


def test_C6_a_base_class_that_drops_what_is_sent_twice_drops_no_message(local):
    class Once(Task):
        """As celery-once does, until the task is done."""

        sent = False

        def apply_async(self, *args, **kwargs):
            dropped, self.sent = self.sent, True
            return None if dropped else super().apply_async(*args, **kwargs)

    meeting = Meeting(local, task={"base": Once})

    assert meeting.duplicate().state == "RETRY"
    assert local.deliver_all() == [Done("SUCCESS", "run 1")]


@pytest.mark.parametrize(
    ("wish", "state", "error"),
    [("retry", "FAILURE", InProgress), ("ignore", "IGNORED", Ignore)],
)
def test_C6_a_stale_record_waits_for_an_operator_not_in_the_queue(local, clock, wish, state, error):
    meeting = Meeting(local, on_stale="refuse", renew=False, on_in_progress=wish)

    done = meeting.duplicate(after=lambda: clock.advance(91) and None)

    assert (done.state, type(done.value)) == (state, error)
    assert getattr(done.value, "stale", True)
    assert local.sent() == []


@pytest.mark.parametrize("how", ["call", "C12 apply", "inside of itself"])
def test_C6_a_call_in_place_is_told(local, monkeypatch, how):
    monkeypatch.setattr(DeliveryWaiter, "goes_on", lambda *args: pytest.fail("it waits"))
    meeting = Meeting(local, key="order_id")

    def call():
        return meeting.task.apply([1]).get() if how == "C12 apply" else meeting.task(1)

    def meanwhile():
        if how != "inside of itself":
            with ThreadPoolExecutor(1) as pool:  # which knows nothing of the task around it
                return pool.submit(call).exception()
        with pytest.raises(InProgress) as caught:
            call()
        return caught.value

    meeting.deliver(meanwhile)

    assert isinstance(meeting.met, InProgress)
    assert local.sent() == []


@pytest.mark.parametrize(
    ("wish", "state", "error"),
    [
        ("retry", "RETRY", Retry),
        ("ignore", "IGNORED", Ignore),
        ("raise", "FAILURE", InProgress),
        ("wait", "FAILURE", InProgress),
    ],
)
def test_C6_it_ends_as_it_is_told_and_waits_if_it_is(local, monkeypatch, wish, state, error):
    waits = []
    goes_on = DeliveryWaiter.goes_on
    monkeypatch.setattr(
        DeliveryWaiter, "goes_on", lambda waiter, met: waits.append(goes_on(waiter, met)) or False
    )

    done = Meeting(local, on_in_progress=wish, wait=20).duplicate()

    assert (done.state, type(done.value), any(waits)) == (state, error, wish == "wait")
    assert len(local.sent()) == (wish == "retry")


def test_C9_a_soft_time_limit_before_a_wait_ends_the_task(local, monkeypatch):
    meeting = Meeting(local)
    monkeypatch.setattr(MemoryStore, "claim", Mock(side_effect=SoftTimeLimitExceeded))

    assert local.deliver(meeting.message).state == "FAILURE"
    assert local.sent() == []


@pytest.fixture
def late(local, clock):
    """Deliver twice, the second time past the lease; return how the first ended, and what ran."""

    def late(then=lambda: None, **options):
        meeting = Meeting(local, **options)

        def meanwhile():
            clock.advance(91)
            successor = local.deliver(meeting.message)
            then()
            return successor

        return meeting.deliver(meanwhile), meeting

    return late


def notice(**how):
    """Notice what a refused renewal says."""
    current().mark_lost(**how)
    current().check()


@pytest.mark.parametrize("then", [lambda: None, notice], ids=["at its end", "by itself"])
def test_C6_a_superseded_owner_gets_the_successors_result(local, late, then):
    done, meeting = late(then)

    assert done == Done("SUCCESS", "run 2")
    assert (meeting.runs, local.sent()) == (2, [])


def test_C6_an_owner_whose_successor_is_at_work_is_sent_again(local, memory, clock):
    meeting = Meeting(local)

    def succeed():
        clock.advance(91)
        [stalled] = running()
        memory.claim(replace(stalled.request, token=uuid4()))

    assert meeting.deliver(succeed).state == "RETRY"
    assert [again.id for again in local.sent()] == [meeting.message.id]


def test_C6_an_owner_whose_successors_record_has_expired_runs_no_second_time(local, late, clock):
    done, meeting = late(lambda: clock.advance(25 * 3600))

    assert (done.state, type(done.value)) == ("FAILURE", LeaseLost)
    assert (meeting.runs, local.sent()) == (2, [])


@pytest.mark.parametrize("transaction", ["separate", "joined"])
@pytest.mark.parametrize("action", ["release", "expire"])
def test_C16_a_lease_that_an_operator_has_ended_is_lost_and_nothing_runs_again(
    local, settings, transactional_db, action, transaction
):
    settings.IDEMPOTENCY = {"default": {}}
    meeting = Meeting(local, transaction=transaction)

    def end():
        [record] = store_for().browse().records
        forced = Resolution(action, epoch=record.epoch, state=record.state, force=True)
        assert store_for().resolve(record.record_id, forced)

    done = meeting.deliver(end)

    assert (done.state, type(done.value)) == ("FAILURE", LeaseLost)
    assert (meeting.runs, local.sent()) == (1, [])


def test_C16_a_lease_that_an_operator_has_ended_before_the_work_is_claimed_again(
    local, settings, transactional_db
):
    settings.IDEMPOTENCY = {"default": {}}
    meeting, told = Meeting(local, transaction="joined"), []

    def end(**given):
        told.append(given["record_id"])
        if len(told) == 1:
            [record] = store_for().browse().records
            forced = Resolution("expire", epoch=record.epoch, state=record.state, force=True)
            assert store_for().resolve(record.record_id, forced)

    signals.claimed.connect(end)
    try:
        done = local.deliver(meeting.message)
    finally:
        signals.claimed.disconnect(end)

    assert done == Done("SUCCESS", "run 1")
    assert (len(told), local.sent()) == (2, [])


@pytest.mark.parametrize("wish", ["retry", "raise"])
def test_C16_a_task_whose_record_an_operator_has_completed_gets_that_result(
    local, settings, transactional_db, wish
):
    settings.IDEMPOTENCY = {"default": {}}
    meeting = Meeting(local, transaction="separate", key="order_id", on_in_progress=wish)

    def complete():
        command = ["idempotency_complete", "meeting 1", "--yes", "--force", "--value", '"by hand"']
        call_command(*command)

    done = meeting.deliver(complete)

    if wish == "retry":
        assert done == Done("SUCCESS", "by hand")
    else:
        assert (done.state, type(done.value)) == ("FAILURE", LeaseLost)
    assert (meeting.runs, local.sent()) == (1, [])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"renew": False}, id="renew"),
        pytest.param({"max_duration": 0.01}, id="C8 max_duration"),
        pytest.param({"deadline": lambda: 90.0}, id="deadline"),
    ],
)
def test_C6_an_owner_whose_lease_is_not_renewed_is_slow_and_fails(local, late, options):
    done, _ = late(lambda: time.sleep(0.02), **options)

    assert (done.state, type(done.value)) == ("FAILURE", LeaseLost)
    assert local.sent() == []


def test_C16_an_owner_that_cannot_ask_for_a_successor_fails(late, local, monkeypatch):
    def down():
        monkeypatch.setattr(MemoryStore, "get", Mock(side_effect=StoreError("down")))

    done, _ = late(down)

    assert (done.state, type(done.value)) == ("FAILURE", LeaseLost)
    assert local.sent() == []


@pytest.mark.parametrize(
    ("meanwhile", "ends"),
    [
        ("gone", Done("SUCCESS", "run 1")),
        ("told that it is gone", LeaseLost),
        (InProgress("another operation"), InProgress),
        (LeaseLost("another operation"), LeaseLost),
    ],
    ids=str,
)
def test_C6_without_another_delivery_it_makes_way_for_nobody(local, memory, meanwhile, ends):
    """Else it would be sent again, and run twice."""

    def work():
        if isinstance(meanwhile, Exception):
            raise meanwhile
        memory._records.clear()
        if meanwhile == "told that it is gone":
            notice(gone=True)

    done = Meeting(local).deliver(work)

    assert done == ends if isinstance(ends, Done) else type(done.value) is ends
    assert done.state in ("SUCCESS", "FAILURE")
    assert local.sent() == []
