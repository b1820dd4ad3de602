"""A duplicate that comes while the first is at work, and an owner that was superseded (C6)."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Task, chain
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError

from django_idempotency import InProgress, LeaseLost, StoreError, current
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.engine.backoff import Patience
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock
from tests.unit.celery.local import Done, Local, Message

pytestmark = pytest.mark.usefixtures("memory")


class Meeting:
    """A task in whose body the test does something: deliver a duplicate, say."""

    def __init__(self, local: Local, *, task: Any = None, **options: Any) -> None:
        self.local = local
        self.runs = 0
        self.meanwhile: Callable[[], Any] = lambda: None
        self.met: Any = None

        @local.app.task(bind=True, name="meeting", max_retries=3, **(task or {}))
        @idempotent_task(**options)
        def work(task: Task, order_id: int) -> str:
            self.runs += 1
            meanwhile, self.meanwhile = self.meanwhile, lambda: None
            self.met = meanwhile()
            return f"run {self.runs}"

        self.task = work
        self.message = local.send(work, 1)

    def duplicate(
        self, message: Message | None = None, *, after: Callable[[], None] = lambda: None
    ) -> Done:
        """Deliver the message, and in the middle of it a duplicate; how the latter ended."""
        duplicate = message or self.message

        def meanwhile() -> Done:
            after()
            return self.local.deliver(duplicate)

        self.meanwhile = meanwhile
        self.local.deliver(self.message)
        assert isinstance(self.met, Done)
        return self.met


def test_C6_R79_each_delivery_is_one_line_of_the_log(
    local: Local, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="django_idempotency")
    meeting = Meeting(local)
    meeting.duplicate()
    local.deliver(meeting.message)

    lines = [line for line in caplog.records if line.name == "django_idempotency"]
    found = [(line.operation, line.outcome) for line in lines]  # type: ignore[attr-defined]
    assert found == [
        ("meeting", "in progress"),
        ("meeting", "completed"),
        ("meeting", "replayed"),
    ]


def test_R61_a_store_that_is_down_is_one_line_with_its_cause(
    local: Local,
    memory: MemoryStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(request: Any) -> Any:
        raise StoreError("The store does not answer.") from OSError("refused")

    monkeypatch.setattr(memory, "claim", refuse)
    meeting = Meeting(local)

    assert local.deliver(meeting.message).state == "FAILURE"
    [line] = [line for line in caplog.records if line.name == "django_idempotency"]
    assert (line.levelname, meeting.runs) == ("ERROR", 0)
    assert line.getMessage().endswith("The store does not answer. (OSError: refused)")


class TestRetry:
    @pytest.mark.parametrize(
        ("ran", "countdown"),
        [
            pytest.param(0.03, 1, id="1 s at least"),
            pytest.param(40, 40, id="as long as the first has been running"),
            pytest.param(70, 20, id="the rest of its lease at most"),
        ],
    )
    def test_C6_it_is_sent_again_after_as_long_as_the_first_has_been_running(
        self, local: Local, clock: FakeClock, ran: float, countdown: float
    ) -> None:
        meeting = Meeting(local)

        done = meeting.duplicate(after=lambda: clock.advance(ran))
        [again] = local.sent()
        assert (done.state, done.value.when) == ("RETRY", pytest.approx(countdown))
        assert again.headers["eta"]
        assert (again.id, again.args) == (meeting.message.id, [1])
        assert local.deliver(again) == Done("SUCCESS", "run 1")
        assert meeting.runs == 1

    def test_C6_it_is_no_retry_of_the_task(self, local: Local) -> None:
        meeting = Meeting(local)
        third = Message({**meeting.message.headers, "retries": 3}, [1], {}, {})

        assert meeting.duplicate(third).state == "RETRY"
        assert local.sent()[0].headers["retries"] == 3

    def test_C6_it_keeps_what_comes_after_it_and_how_it_is_to_run(self, local: Local) -> None:
        meeting = Meeting(local)
        chain(
            meeting.task.s(1).set(
                link=meeting.task.si(2), time_limit=60, soft_time_limit=50, headers={"mine": "x"}
            ),
            meeting.task.si(3),
        ).apply_async()
        [meeting.message] = local.sent()
        embed = deepcopy(meeting.message.embed)  # Celery takes the next step out of it

        meeting.duplicate()
        again = next(message for message in local.sent() if message.id == meeting.message.id)

        assert again.embed == embed
        assert again.headers["timelimit"] == meeting.message.headers["timelimit"] == [60, 50]
        assert again.headers["mine"] == "x"
        assert again.headers["root_id"] == meeting.message.headers["root_id"]

    def test_C6_the_key_may_be_that_of_another_message(self, local: Local) -> None:
        meeting = Meeting(local, key="order_id")
        other = local.send(meeting.task, 1)

        assert meeting.duplicate(other).state == "RETRY"
        [again] = local.sent()
        assert again.id == other.id
        assert local.deliver(again).value == "run 1"

    @pytest.mark.parametrize(
        ("acks_late", "retried"),
        [(True, ()), (True, (Exception,)), (False, ())],
        ids=["kept", "C7 kept in spite of autoretry_for", "not lost in silence"],
    )
    def test_C6_a_broker_that_is_down(
        self, local: Local, monkeypatch: pytest.MonkeyPatch, acks_late: bool, retried: Any
    ) -> None:
        meeting = Meeting(local, task={"acks_late": acks_late, "autoretry_for": retried})
        monkeypatch.setattr(local.app, "send_task", Mock(side_effect=OperationalError("down")))

        done = meeting.duplicate()

        if acks_late:
            # As it comes out of a process of the pool.
            kept = pickle.loads(pickle.dumps(done.value))
            assert (done.state, isinstance(kept, Reject), kept.requeue) == ("REJECTED", True, True)
        else:
            assert (done.state, type(done.value)) == ("FAILURE", OperationalError)

    def test_C6_a_base_class_that_drops_what_is_sent_twice_drops_no_message(
        self, local: Local
    ) -> None:
        class Once(Task):
            """As celery-once does, until the task is done."""

            sent = False

            def apply_async(self, *args: Any, **kwargs: Any) -> Any:
                if not self.sent:
                    self.sent = True
                    return super().apply_async(*args, **kwargs)
                return None

        meeting = Meeting(local, task={"base": Once})

        assert meeting.duplicate().state == "RETRY"
        assert local.deliver_all() == [Done("SUCCESS", "run 1")]

    def test_C6_a_stale_record_waits_for_an_operator_not_in_the_queue(
        self, local: Local, clock: FakeClock
    ) -> None:
        meeting = Meeting(local, on_stale="refuse", renew=False)

        def lapse() -> Done:
            clock.advance(91)
            return local.deliver(meeting.message)

        meeting.meanwhile = lapse
        local.deliver(meeting.message)

        assert (meeting.met.state, type(meeting.met.value)) == ("FAILURE", InProgress)
        assert meeting.met.value.stale
        assert local.sent() == []

    @pytest.mark.parametrize("how", ["call", "C12 apply", "C12 always eager", "inside of itself"])
    def test_C6_a_call_in_place_is_told(self, local: Local, how: str) -> None:
        meeting = Meeting(local, key="order_id")

        calls: dict[str, Callable[[], Any]] = {
            "call": lambda: meeting.task(1),
            "C12 apply": lambda: meeting.task.apply([1]).get(),
            "C12 always eager": lambda: meeting.task.delay(1).get(),
        }

        def meanwhile() -> Any:
            local.app.conf.task_always_eager = how == "C12 always eager"
            if how in calls:
                with ThreadPoolExecutor(1) as pool:  # which knows nothing of the task around it
                    return pool.submit(calls[how]).exception()
            with pytest.raises(InProgress) as caught:
                meeting.task(1)
            return caught.value

        meeting.meanwhile = meanwhile
        local.deliver(meeting.message)

        assert isinstance(meeting.met, InProgress)
        assert local.sent() == []


class TestOtherWishes:
    @pytest.mark.parametrize(
        ("wish", "state", "error"),
        [
            ("retry", "RETRY", Retry),
            ("ignore", "IGNORED", Ignore),
            ("raise", "FAILURE", InProgress),
            ("wait", "FAILURE", InProgress),
        ],
    )
    def test_C6_it_ends_as_it_is_told_and_waits_if_it_is(
        self, local: Local, monkeypatch: pytest.MonkeyPatch, wish: str, state: str, error: Any
    ) -> None:
        waits: list[float] = []
        look = Patience.next
        monkeypatch.setattr(Patience, "next", lambda patience: waits.append(look(patience)) or 0)

        done = Meeting(local, on_in_progress=wish, wait=20).duplicate()

        assert (done.state, type(done.value), any(waits)) == (state, error, wish == "wait")
        assert len(local.sent()) == (wish == "retry")

    def test_C6_waiting_ends_with_the_result(
        self, local: Local, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        meeting = Meeting(local, on_in_progress="wait", wait=20)
        looks = threading.Semaphore(0)
        claim = memory.claim
        monkeypatch.setattr(memory, "claim", lambda request: (looks.release(), claim(request))[1])

        with ThreadPoolExecutor(1) as pool:

            def meanwhile() -> Future[Done]:
                duplicate = pool.submit(local.deliver, meeting.message)
                for _ in range(3):  # that of the first, and two of the duplicate
                    assert looks.acquire(timeout=10)
                return duplicate

            meeting.meanwhile = meanwhile
            first = local.deliver(meeting.message)
            assert meeting.met.result(10) == first == Done("SUCCESS", "run 1")


class TestSuperseded:
    """An owner that stood still for longer than its lease, and comes back to find a successor."""

    @pytest.fixture
    def late(self, local: Local, clock: FakeClock) -> Callable[..., Done]:
        """Deliver twice, the second time past the lease; return how the first ended."""

        def late(then: Callable[[], Any] = lambda: None, **options: Any) -> Done:
            self.meeting = meeting = Meeting(local, **options)

            def meanwhile() -> Done:
                clock.advance(91)
                successor = local.deliver(meeting.message)
                then()
                return successor

            meeting.meanwhile = meanwhile
            return local.deliver(meeting.message)

        return late

    def test_C6_it_is_sent_again_and_gets_the_successors_result(
        self, local: Local, late: Any
    ) -> None:
        done = late()

        assert self.meeting.met == Done("SUCCESS", "run 2")
        assert done.state == "RETRY"
        assert local.deliver_all() == [Done("SUCCESS", "run 2")]
        assert self.meeting.runs == 2

    def test_C6_also_if_it_notices_by_itself(self, local: Local, late: Any) -> None:
        def check() -> None:
            lease = current()
            assert lease is not None
            lease.mark_lost()  # as a refused renewal does
            lease.check()

        assert late(check).state == "RETRY"
        assert local.deliver_all() == [Done("SUCCESS", "run 2")]

    @pytest.mark.parametrize(
        "options",
        [
            pytest.param({"renew": False}, id="renew"),
            pytest.param({"max_duration": 0.01}, id="C8 max_duration"),
            pytest.param({"deadline": lambda: 90.0}, id="deadline"),
        ],
    )
    def test_C6_whose_lease_is_not_renewed_is_slow_and_fails(
        self, local: Local, late: Any, options: Any
    ) -> None:
        done = late(lambda: time.sleep(0.02), **options)

        assert (done.state, type(done.value)) == ("FAILURE", LeaseLost)
        assert local.sent() == []

    @pytest.mark.parametrize(
        ("wish", "state"), [("ignore", "IGNORED"), ("raise", "FAILURE"), ("wait", "FAILURE")]
    )
    def test_C6_other_wishes(self, local: Local, late: Any, wish: str, state: str) -> None:
        assert late(on_in_progress=wish).state == state
        assert local.sent() == []


@pytest.mark.parametrize("wish", ["retry", "ignore"])
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
def test_C6_without_another_delivery_at_work_it_makes_way_for_nobody(
    local: Local, memory: MemoryStore, wish: str, meanwhile: Any, ends: Any
) -> None:
    """Neither sent again, and run twice, nor ignored."""
    meeting = Meeting(local, on_in_progress=wish)

    def work() -> None:
        if isinstance(meanwhile, Exception):
            raise meanwhile
        memory._records.clear()
        if meanwhile == "told that it is gone":
            lease = current()
            assert lease is not None
            lease.mark_lost(gone=True)  # as a refused renewal does
            lease.check()

    meeting.meanwhile = work
    done = local.deliver(meeting.message)

    assert done == ends if isinstance(ends, Done) else type(done.value) is ends
    assert done.state in ("SUCCESS", "FAILURE")
    assert local.sent() == []
