"""A message that meets a lease waits in its own delivery, or is sent again (C8, C9)."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from kombu.exceptions import OperationalError

from django_idempotency import InProgress, QuotaExceeded, current
from django_idempotency.contrib.celery import deliveries
from django_idempotency.contrib.celery.waits import DeliveryWaiter
from django_idempotency.engine import Engine
from tests.unit.celery.conftest import Done
from tests.unit.celery.test_in_progress import Meeting

pytestmark = pytest.mark.usefixtures("memory")

DENIED = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "SendMessage")


@pytest.fixture
def when_it_waits(monkeypatch):
    """Do something each time that a delivery begins to wait."""

    def when_it_waits(*actions):
        goes_on, left = DeliveryWaiter.goes_on, [*actions]

        def watched(waiter, met):
            found = goes_on(waiter, met)
            if found and left:
                left.pop(0)()
            return found

        monkeypatch.setattr(DeliveryWaiter, "goes_on", watched)

    return when_it_waits


def redeliver(meeting, *, after=lambda: None, **delivery):
    """Deliver the message, and in the middle of it again; how the redelivery ended."""
    delivery = {"redelivered": True, **delivery}
    meeting.deliver(lambda: after() or meeting.local.deliver(meeting.message, **delivery))
    assert isinstance(meeting.met, Done)
    return meeting.met


@pytest.mark.parametrize(
    ("ran", "delivery"),
    [
        pytest.param(0.03, {"driver": "amqp"}, id="redelivered"),
        pytest.param(0.03, {"driver": "sqs"}, id="from SQS, perhaps"),
        pytest.param(0.03, {"noted": False}, id="of which nothing is known"),
    ],
)
@pytest.mark.parametrize("wish", ["retry", "ignore", "raise", "wait"])
def test_C8_a_message_waits_for_a_lease_that_is_not_renewed_and_runs(
    local, clock, when_it_waits, ran, delivery, wish
):
    when_it_waits(lambda: clock.advance(91))
    meeting = Meeting(local, on_in_progress=wish, wait=0.01)

    done = redeliver(meeting, after=lambda: clock.advance(ran) and None, **delivery)

    assert done == Done("SUCCESS", "run 2")
    assert local.sent() == []


@pytest.mark.parametrize(
    ("wish", "state"), [("retry", "SUCCESS"), ("ignore", "IGNORED"), ("raise", "FAILURE")]
)
@pytest.mark.parametrize("renew", [True, False])
def test_C6_C8_a_first_delivery_waits_for_a_lease_that_is_not_renewed_or_ends_as_told(
    local, clock, when_it_waits, wish, state, renew
):
    when_it_waits(lambda: clock.advance(91))
    meeting = Meeting(local, on_in_progress=wish, renew=renew)

    ran = 50 if renew else 1
    done = redeliver(meeting, after=lambda: clock.advance(ran) and None, redelivered=False)

    assert (done.state, local.sent()) == (state, [])


@pytest.mark.parametrize(
    ("wish", "state", "error"),
    [("retry", "RETRY", None), ("ignore", "IGNORED", Ignore), ("raise", "FAILURE", InProgress)],
)
def test_C6_C8_a_renewal_shows_that_the_owner_lives(
    local, memory, clock, when_it_waits, wish, state, error
):
    meeting, leases = Meeting(local, on_in_progress=wish), []

    def renew():
        clock.advance(1)
        assert memory.renew(leases, timedelta(seconds=90))

    when_it_waits(renew, lambda: clock.advance(91))
    done = redeliver(meeting, after=lambda: leases.append(current()))

    assert (done.state, error is None or type(done.value) is error) == (state, True)
    assert [again.id for again in local.sent()] == [meeting.message.id] * (wish == "retry")


@contextmanager
def in_a_thread(meeting, **delivery):
    """A redelivery while the first runs: what it becomes is known when the first has ended."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda: pool.submit(meeting.local.deliver, meeting.message, **delivery)


@pytest.mark.parametrize(
    ("error", "delivery"),
    [
        pytest.param(OperationalError("down"), {}, id="down"),
        pytest.param(DENIED, {}, id="denied"),
        pytest.param(KeyError("b"), {}, id="any"),
        pytest.param(None, {"noted": False, "redelivered": True}, id="an unknown serializer"),
    ],
)
@pytest.mark.parametrize("acks_late", [True, False])
def test_C6_what_cannot_be_sent_again_stays_until_the_owner_has_ended(
    local, memory, clock, monkeypatch, when_it_waits, error, delivery, acks_late
):
    stays = threading.Event()
    stay = DeliveryWaiter.stay
    monkeypatch.setattr(DeliveryWaiter, "stay", lambda waiter: stays.set() or stay(waiter))
    meeting = Meeting(local, task={"acks_late": acks_late, "autoretry_for": (Exception,)})
    if error is not None:
        monkeypatch.setattr(local.app, "send_task", Mock(side_effect=error))

    with in_a_thread(meeting, **delivery) as duplicate:

        def meanwhile():
            leases = [current()]

            def renew():
                clock.advance(1)
                memory.renew(leases, timedelta(seconds=90))

            when_it_waits(renew, renew)
            ended = duplicate()
            assert stays.wait(30)
            return ended

        first = meeting.deliver(meanwhile)
        done = meeting.met.result(30)

    assert first == done == Done("SUCCESS", "run 1")


LIMITS = {
    "soft": ({"soft_time_limit": 100}, {}),
    "hard": ({"time_limit": 100}, {}),
    "of the worker": ({}, {"limits": {"timeout": 100}}),
    "soft, of the worker": ({}, {"limits": {"soft_timeout": 100}}),
}


@pytest.mark.parametrize("limit", [*LIMITS, "of the message", "expires"])
@pytest.mark.parametrize("wish", ["retry", "ignore"])
def test_C9_a_message_whose_time_is_short_is_sent_again(local, clock, when_it_waits, limit, wish):
    when_it_waits(lambda: clock.advance(91))
    options, delivery = LIMITS.get(limit, ({}, {}))
    meeting = Meeting(local, task=options, on_in_progress=wish)
    of_message = {
        "of the message": {"timelimit": [100, None]},
        "expires": {"expires": "2020-01-01"},
    }
    headers = {**meeting.message.headers, **of_message.get(limit, {})}
    meeting.message = replace(meeting.message, headers=headers)

    assert redeliver(meeting, **delivery).state == "RETRY"
    assert len(local.sent()) == 1


def test_C9_a_limit_of_twice_the_rest_of_the_lease_suffices(local, clock, when_it_waits):
    when_it_waits(lambda: clock.advance(91))
    meeting = Meeting(local, task={"time_limit": 182})

    assert redeliver(meeting).state == "SUCCESS"


@pytest.mark.parametrize("acks_late", [True, False], ids=["C7 goes back", "is not lost in silence"])
def test_C9_a_message_that_can_neither_stay_nor_be_sent(local, monkeypatch, acks_late):
    pauses = []
    monkeypatch.setattr(deliveries.time, "sleep", pauses.append)
    retried = (Exception,) if acks_late else ()
    meeting = Meeting(local, task={"acks_late": acks_late, "autoretry_for": retried})
    expired = {**meeting.message.headers, "expires": "2020-01-01"}
    meeting.message = replace(meeting.message, headers=expired)
    monkeypatch.setattr(local.app, "send_task", Mock(side_effect=DENIED))

    done = redeliver(meeting)

    if acks_late:
        kept = pickle.loads(pickle.dumps(done.value))  # as it comes out of a process of the pool
        assert (done.state, isinstance(kept, Reject), kept.requeue) == ("REJECTED", True, True)
        assert pauses[0] > 0.3
    else:
        assert (done.state, type(done.value)) == ("FAILURE", ClientError)


def test_C9_a_soft_limit_in_a_wait_loses_nothing(local, when_it_waits):
    when_it_waits(Mock(side_effect=SoftTimeLimitExceeded))

    assert redeliver(Meeting(local)).state == "RETRY"
    assert len(local.sent()) == 1


def test_C8_the_owner_of_a_lock_lives_if_it_holds_it_for_a_third_of_a_lease(clock):
    policy = Mock(lease=timedelta(seconds=0.3), on_stale="take_over", renew=True, deadline=None)

    def waiter(**options):
        return DeliveryWaiter(Mock(), policy, timedelta(0), **{"most": 60, **options})

    first, again = waiter(first=True), waiter(first=False)

    assert (first.goes_on(None), first.alive) == (False, True)
    assert (again.goes_on(None), again.alive) == (True, False)
    threading.Event().wait(again.left)
    assert (again.goes_on(None), again.alive) == (False, True)


def test_a_task_over_its_quota_that_cannot_be_sent_again_stays(local, monkeypatch):
    meeting, pauses = Meeting(local), []
    refusals = [QuotaExceeded(retry_after=300), QuotaExceeded(retry_after=1)]
    claim = Engine._claim

    def refuse(*args):
        if refusals:
            raise refusals.pop(0)
        return claim(*args)

    monkeypatch.setattr(deliveries.time, "sleep", pauses.append)
    monkeypatch.setattr(local.app, "send_task", Mock(side_effect=DENIED))
    monkeypatch.setattr(Engine, "_claim", refuse)

    assert local.deliver(meeting.message) == Done("SUCCESS", "run 1")
    assert pauses == [5, 1]
