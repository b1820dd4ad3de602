"""A message that meets a lease waits in its own delivery, or is sent again (C8, C9)."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError
from celery.app import builtins
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from django.db import connections, transaction
from kombu.exceptions import OperationalError

from django_idempotency import InProgress, LeaseLost, current
from django_idempotency.contrib.celery import deliveries, idempotent_task
from django_idempotency.contrib.celery.waits import DeliveryWaiter
from django_idempotency.engine.waiting import Waiter
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
@pytest.mark.parametrize(
    ("options", "ran"),
    [({}, 50), ({"renew": False}, 1), ({"deadline": lambda: 90.0}, 1)],
    ids=["renew", "not renewed", "deadline"],
)
def test_C6_C8_a_first_delivery_waits_for_a_lease_that_is_not_renewed_or_ends_as_told(
    local, clock, when_it_waits, wish, state, options, ran
):
    when_it_waits(lambda: clock.advance(91))
    meeting = Meeting(local, on_in_progress=wish, **options)

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
    stays, tries = threading.Event(), []
    goes_on, stay = DeliveryWaiter.goes_on, DeliveryWaiter.stay

    def watched(waiter, met):
        if waiter.stays or len(tries) > 1:
            stays.set()
        return goes_on(waiter, met)

    monkeypatch.setattr(DeliveryWaiter, "goes_on", watched)
    monkeypatch.setattr(DeliveryWaiter, "stay", lambda waiter: tries.append(1) or stay(waiter))
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
    assert len(tries) == 1


LIMITS = {
    "soft": ({"soft_time_limit": 100}, {}),
    "hard": ({"time_limit": 100}, {}),
    "of the worker": ({}, {"limits": {"timeout": 100}}),
    "soft, of the worker": ({}, {"limits": {"soft_timeout": 100}}),
}


@pytest.mark.parametrize("limit", [*LIMITS, "of the message", "soft, of the message", "expires"])
@pytest.mark.parametrize("wish", ["retry", "ignore"])
def test_C9_a_message_whose_time_is_short_is_sent_again(local, clock, when_it_waits, limit, wish):
    when_it_waits(lambda: clock.advance(91))
    options, delivery = LIMITS.get(limit, ({}, {}))
    meeting = Meeting(local, task=options, on_in_progress=wish)
    of_message = {
        **{name: {"timelimit": [None, None]} for name in ("soft", "hard")},  # sent by its name
        "of the message": {"timelimit": [100, None]},
        "soft, of the message": {"timelimit": [None, 100]},
        "expires": {"expires": "2020-01-01"},
    }
    headers = {**meeting.message.headers, **of_message.get(limit, {})}
    meeting.message = replace(meeting.message, headers=headers)

    assert redeliver(meeting, **delivery).state == "RETRY"
    assert len(local.sent()) == 1


def test_C9_a_message_that_names_no_limits_waits_without(local, clock, when_it_waits):
    """As one of another sender than Celery may."""
    when_it_waits(lambda: clock.advance(91))
    meeting = Meeting(local)
    headers = {**meeting.message.headers, "timelimit": None}
    meeting.message = replace(meeting.message, headers=headers)

    assert redeliver(meeting).state == "SUCCESS"


def test_C9_a_limit_of_twice_the_rest_of_the_lease_suffices(local, clock, when_it_waits):
    when_it_waits(lambda: clock.advance(91))
    meeting = Meeting(local, task={"time_limit": 182})

    assert redeliver(meeting).state == "SUCCESS"


@pytest.mark.django_db(transaction=True)
def test_C9_a_message_does_not_stay_in_a_transaction(local, clock, when_it_waits):
    """Which would be open as long; a worker's own transaction around all tasks, say."""
    when_it_waits(lambda: clock.advance(91))
    meeting = Meeting(local)

    with transaction.atomic():
        done = redeliver(meeting)

    assert done.state == "RETRY"
    assert len(local.sent()) == 1


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


def test_C9_a_soft_limit_of_the_work_after_a_wait_sends_nothing_again(local, clock, when_it_waits):
    when_it_waits(lambda: clock.advance(91))
    meeting = Meeting(local)

    def meanwhile():
        meeting.meanwhile = Mock(side_effect=SoftTimeLimitExceeded)  # of the one that has waited
        return local.deliver(meeting.message, redelivered=True)

    meeting.deliver(meanwhile)

    assert (meeting.met.state, type(meeting.met.value)) == ("FAILURE", SoftTimeLimitExceeded)
    assert (meeting.runs, local.sent()) == (2, [])


@pytest.mark.parametrize(("wish", "state"), [("ignore", "IGNORED"), ("raise", "FAILURE")])
def test_C6_who_has_waited_and_run_and_is_superseded_ends_as_it_is_told(
    local, clock, when_it_waits, wish, state
):
    when_it_waits(lambda: clock.advance(91))
    meeting = Meeting(local, on_in_progress=wish)

    def stall():
        clock.advance(91)
        return local.deliver(meeting.message)

    def meanwhile():
        meeting.meanwhile = stall
        return local.deliver(meeting.message, redelivered=True)

    meeting.deliver(meanwhile)

    assert (meeting.met.state, meeting.runs, local.sent()) == (state, 3, [])


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize(
    ("how", "closed"), [("worker", True), ("call", False), ("C12 apply", False)]
)
def test_R51_a_wait_closes_the_connections_of_a_worker_and_not_those_of_a_caller(
    local, clock, monkeypatch, how, closed
):
    other, goes_on = connections["other"], Waiter.goes_on
    monkeypatch.setattr(other, "vendor", "mysql")  # the file of SQLite would stay open
    other.ensure_connection()

    def watched(waiter, met):
        found = goes_on(waiter, met)
        clock.advance(91)
        return found

    monkeypatch.setattr(Waiter, "goes_on", watched)
    meeting = Meeting(local, key="order_id", on_in_progress="wait", wait=20)
    calls = {
        "worker": lambda: local.deliver(meeting.message).value,
        "call": lambda: meeting.task(1),
        "C12 apply": lambda: meeting.task.apply([1]).get(),
    }

    meeting.meanwhile = lambda: Context().run(calls[how])  # as if it were another process
    with pytest.raises(LeaseLost):
        meeting.task(1)

    assert meeting.met == "run 2"
    assert (other.connection is None) is closed


@pytest.mark.parametrize(
    ("text", "cause", "reason"),
    [
        ("", None, "OperationalError"),
        ("", TimeoutError(), "OperationalError: TimeoutError"),
        ("", OSError("reset"), "OperationalError: OSError: reset"),
        ("down", OSError("reset"), "OperationalError: down"),
    ],
)
def test_the_log_says_why_a_message_cannot_be_sent_again(
    local, monkeypatch, caplog, when_it_waits, text, cause, reason
):
    error = OperationalError(text)
    error.__cause__ = cause
    when_it_waits(Mock(side_effect=SoftTimeLimitExceeded))
    meeting = Meeting(local)
    monkeypatch.setattr(local.app, "send_task", Mock(side_effect=error))

    def told():
        return [line for line in caplog.messages if "stays in its delivery" in line]

    def meanwhile():
        done = redeliveries.submit(local.deliver, meeting.message, redelivered=True)
        while not told() and not done.done():
            threading.Event().wait(0.01)
        return done

    with ThreadPoolExecutor(1) as redeliveries:
        meeting.deliver(meanwhile)
        assert meeting.met.result(30) == Done("SUCCESS", "run 1")

    assert told()[0].endswith(f"since it cannot be sent again: {reason}")


class Mapped:
    """One guarded task that Celery's own task calls for each of many arguments."""

    def __init__(self, local, *, how="starmap", **options):
        self.local, self.ran = local, []
        builtins.add_map_task(local.app)  # which `local` has not, as no app's own tasks
        builtins.add_starmap_task(local.app)
        #: What happens in the run for this argument.
        self.meanwhile = {}

        @local.app.task(name="mapped")
        @idempotent_task(key="name", **options)
        def work(name):
            self.ran.append(name)
            if name in self.meanwhile:
                self.meanwhile.pop(name)()
            return f"{name} {len(self.ran)}"

        if how == "chunks":
            work.chunks([("x1",), ("x2",), ("x3",)], 3).apply_async()
        elif how == "map":
            work.map(["x1", "x2", "x3"]).apply_async()
        else:
            work.starmap([("x1",), ("x2",), ("x3",)]).apply_async()
        self.work = work
        [self.message] = local.sent()

    def redeliver_in(self, name, **delivery):
        """Deliver it, and again in the middle of the run for `name`; how the redelivery ended."""
        ended = []
        self.meanwhile[name] = lambda: ended.append(
            self.local.deliver(self.message, redelivered=True, **delivery)
        )
        self.local.deliver(self.message)
        return ended[0]


@pytest.mark.parametrize("how", ["map", "starmap", "chunks"])
def test_C8_the_rest_of_a_map_runs_after_the_lease_of_a_killed_one(
    local, clock, when_it_waits, how
):
    when_it_waits(lambda: clock.advance(91))

    done = Mapped(local, how=how).redeliver_in("x2")

    assert done == Done("SUCCESS", ["x1 1", "x2 3", "x3 4"])
    assert local.sent() == []


def test_C8_a_map_waits_until_a_live_owner_has_ended(local, memory, clock, when_it_waits):
    mapped, waits = Mapped(local), threading.Event()

    def owner():
        when_it_waits(waits.set)
        redelivery.append(pool.submit(local.deliver, mapped.message))
        assert waits.wait(30)
        clock.advance(50)
        assert memory.renew([current()], timedelta(seconds=90))
        clock.advance(50)  # past the first lease

    redelivery = []
    with ThreadPoolExecutor(1) as pool:
        mapped.meanwhile["x2"] = owner
        mapped.work("x2")
        done = redelivery[0].result(30)

    assert done == Done("SUCCESS", ["x1 2", "x2 2", "x3 3"])


@pytest.mark.parametrize("wish", ["raise", "wait"])
def test_C6_a_map_behind_a_live_owner_ends_as_it_is_told(local, memory, clock, when_it_waits, wish):
    mapped, done = Mapped(local, on_in_progress=wish, wait=0.01), []

    def owner():
        leases = [current()]

        def renew():
            clock.advance(1)
            assert memory.renew(leases, timedelta(seconds=90))

        when_it_waits(renew)
        done.append(local.deliver(mapped.message, redelivered=True))

    mapped.meanwhile["x2"] = owner
    mapped.work("x2")

    assert (done[0].state, type(done[0].value)) == ("FAILURE", InProgress)


@pytest.mark.parametrize("limit", ["of the worker", "of the message"])
@pytest.mark.parametrize("error", [InProgress, SoftTimeLimitExceeded])
def test_C9_a_map_waits_for_half_of_its_time_limit(local, when_it_waits, limit, error):
    mapped, delivery = Mapped(local), {}
    if limit == "of the worker":
        delivery["limits"] = {"timeout": 0.4}
    else:
        headers = {**mapped.message.headers, "timelimit": [0.4, None]}
        mapped.message = replace(mapped.message, headers=headers)
    if error is SoftTimeLimitExceeded:
        when_it_waits(Mock(side_effect=error))

    done = mapped.redeliver_in("x1", **delivery)

    assert (done.state, type(done.value)) == ("FAILURE", error)
    assert local.sent() == []


def test_C9_all_waits_of_a_map_count_towards_its_time_limit(local, monkeypatch):
    began = []
    monkeypatch.setattr(
        deliveries, "seconds_to_stay", lambda task, started: began.append((task.name, started)) or 0
    )
    mapped = Mapped(local)
    mapped.meanwhile["x1"] = lambda: threading.Event().wait(0.05)

    def other():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(local.deliver, mapped.message).result(30)

    before = time.monotonic()
    mapped.meanwhile["x2"] = other
    mapped.work("x2")

    [(name, started)] = began
    assert name == "celery.starmap"
    assert before <= started <= time.monotonic() - 0.05


@pytest.mark.parametrize(
    "how", ["eagerly", "as a function", "by a task", "by a task of a map's own"]
)
def test_C6_another_direct_call_is_told_at_once(local, monkeypatch, how):
    monkeypatch.setattr(DeliveryWaiter, "goes_on", lambda *args: pytest.fail("it waits"))
    mapped, caught = Mapped(local), []
    starmap = local.app.tasks["celery.starmap"]

    @local.app.task(name="around")
    def around(name):
        return mapped.work(name)

    def meanwhile():
        args = (mapped.work.s(), [("x1",)])
        if how == "eagerly":
            caught.append(starmap.apply(args).result)
        elif how == "as a function":
            with pytest.raises(InProgress) as raised:
                starmap(*args)
            caught.append(raised.value)
        else:
            around.delay("x1") if how == "by a task" else around.map(["x1"]).apply_async()
            [message] = local.sent()
            caught.append(local.deliver(message).value)

    mapped.meanwhile["x1"] = lambda: ThreadPoolExecutor(1).submit(meanwhile).result(30)
    mapped.work("x1")

    assert [type(error) for error in caught] == [InProgress]
