"""The key of a task, its scope, and what is compared (C1 to C3)."""

from __future__ import annotations

import functools
import itertools
from decimal import Decimal
from enum import Enum, IntEnum
from unittest.mock import call

import pytest
from celery import Task

from django_idempotency import FingerprintMismatch, InvalidKey
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.contrib.events import sqs_message_id
from tests.unit.celery.conftest import Done

pytestmark = pytest.mark.usefixtures("memory")

MESSAGE = {"messageId": "m-1", "body": "order 1", "receiptHandle": "r-1"}
MISMATCH = FingerprintMismatch


def counting(app, shape, name="charge", bind=False, **guard):
    """A guarded task with the arguments of `shape`, which it calls; the number of its run."""
    runs = itertools.count(1)

    @functools.wraps(shape)
    def body(*args, **kwargs):
        shape(*args, **kwargs)
        return next(runs)

    body.__name__ = name
    return app.task(idempotent_task(**guard)(body), name=name, bind=bind)


def results(task, *calls):
    """What calls of the task return, or the type of what they raise."""
    found = []
    for one in calls:
        try:
            found.append(task(*one.args, **one.kwargs))
        except Exception as error:
            found.append(type(error))
    return found


#: The arguments of a task, its guard, and what its calls come to: the number of the run.
CALLS = {
    "an argument by its name": (
        (lambda order_id: ..., {"key": "order_id"}),
        [(call(1), 1), (call(order_id=1), 1), (call(2), 2)],
    ),
    "neither key nor id": ((lambda order_id: ..., {}), [(call(1), 1), (call(1), 2)]),
    "other arguments": (
        (lambda order_id, lines: ..., {"key": "order_id"}),
        [(call(1, {1: 2}), 1), (call(1, {2: 2}), MISMATCH), (call(1, {1: 2}), 1)],
    ),
    "names of members that JSON has none of": (
        (lambda order_id, lines: ..., {"key": "order_id"}),
        [(call(1, {(1, 2): 3}), 1), (call(1, {(1, 3): 3}), MISMATCH), (call(1, {(1, 2): 3}), 1)],
    ),
    "a payload": (
        (lambda order, cents, at: ..., {"key": "order", "payload": lambda order, cents, at: cents}),
        [(call(1, 5, "noon"), 1), (call(1, 5, "night"), 1), (call(1, 6, "noon"), MISMATCH)],
    ),
    "a key of messages, which compares nothing": (
        (lambda message: ..., {"key": sqs_message_id}),
        [(call(MESSAGE), 1), (call({**MESSAGE, "receiptHandle": "r-2"}), 1)],
    ),
}


def test_C1_C3_what_is_the_same_and_what_is_a_mismatch(app):
    for (shape, guard), calls in CALLS.values():
        charge = counting(app, shape, f"charge_{len(app.tasks)}", **guard)

        assert results(charge, *[one for one, _ in calls]) == [expected for _, expected in calls]


@pytest.mark.parametrize("bind", [False, True], ids=["function", "bind"])
def test_C1_a_callable_may_have_names_of_its_own(local, bind):
    def bound(self, order_id):
        assert self.name == "charge"

    shape = bound if bind else lambda order_id: ...
    charge = counting(local.app, shape, key=lambda x: str(x), bind=bind)
    messages = [local.send(charge, 1), local.send(charge, order_id=1)]

    assert [local.deliver(message).value for message in messages] == [1, 1]


class Wrapping(Task):
    """A base that wraps the call."""

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize("base", [Task, Wrapping])
def test_C1_without_a_key_it_is_the_id_of_the_task(local, memory, base):
    local.app.Task = base
    charge = counting(local.app, lambda order: ...)
    first, other = local.send(charge, 1), local.send(charge, 1)

    assert [local.deliver(message).value for message in (first, other, first)] == [1, 2, 1]
    assert {record.key for record in memory._records.values()} == {first.id, other.id}
    # There is nothing to compare (C3): not even what has no canonical form.
    assert [charge.apply([object()], task_id="1").get() for _ in range(2)] == [3, 3]


@pytest.mark.parametrize("decorator", [idempotent_task, idempotent_task("depth")])
def test_C1_a_task_that_calls_itself_calls_a_function(local, decorator):
    runs = []

    @local.app.task
    @decorator
    def walk(depth):
        runs.append(depth)
        return 1 + (walk(depth - 1) + walk(depth - 1) if depth else 0)

    message = local.send(walk, 2)

    assert [local.deliver(message).value, local.deliver(message).value] == [7, 7]
    assert len(runs) == (7 if decorator is idempotent_task else 3)


def test_C1_no_key_fails_the_task_loudly(local, caplog):
    caplog.set_level("INFO", "django_idempotency")
    charge = counting(local.app, lambda order: pytest.fail("ran"), key=lambda order: order)

    done = local.deliver(local.send(charge, None))

    assert (done.state, type(done.value)) == ("FAILURE", InvalidKey)
    told = [record for record in caplog.records if record.name == "django_idempotency"]
    assert [record.outcome for record in told] == ["key invalid"]


def test_C1_the_body_called_outside_of_its_task_finds_it(app):
    charge = counting(app, lambda order_id: ..., key="order_id")

    @app.task
    def other():
        return charge.run(1)

    assert [charge.run(1), other(), charge(1)] == [1, 1, 1]
    with pytest.raises(RuntimeError, match="put @shared_task or"):
        idempotent_task(key="order_id")(lambda order_id: ...)(1)


@pytest.mark.parametrize("how", ["worker", "C12 apply"])
def test_C1_a_task_that_replaces_itself_runs_each_time(local, how):
    pages = []

    @local.app.task(bind=True)
    @idempotent_task
    def crawl(self, page):
        pages.append(page)
        return self.replace(self.s(page + 1)) if page < 3 else "end"

    if how == "worker":
        message = local.send(crawl, 1)
        first, *_, last = [local.deliver(message), *local.deliver_all()]
        assert (first.state, local.deliver(message).state) == ("IGNORED", "IGNORED")
        assert last == Done("SUCCESS", "end")
    else:
        assert [crawl.apply([1], task_id="1").get() for _ in range(2)] == ["end", "end"]
    assert pages == [1, 2, 3]


def test_C1_C12_a_task_that_has_replaced_itself_and_fails_does_not_replace_itself_again(app):
    pages = []

    @app.task(bind=True)
    @idempotent_task
    def crawl(self, page):
        pages.append(page)
        if page == 1:
            self.replace(self.s(2))
            raise ConnectionError
        return "end"

    ends = [type(crawl.apply([1], task_id="1").result) for _ in range(2)]

    assert (ends, pages) == ([ConnectionError] * 2, [1, 2, 1])


@pytest.mark.parametrize(
    ("guard", "second"),
    [
        pytest.param({}, 2, id="C2 two tasks never meet"),
        pytest.param({"scope": "money"}, MISMATCH, id="C3 I11 nor get each other's result"),
        pytest.param({"scope": "money", "payload": None}, MISMATCH, id="C3 nor without"),
        pytest.param({"scope": "money", "operation": "move"}, 1, id="C2 C3 one operation"),
    ],
)
def test_C2_two_tasks(app, memory, guard, second):
    runs = []

    @idempotent_task(key="order_id", **guard)
    def move(order_id):
        runs.append(order_id)
        return len(runs)

    charge, refund = (app.task(move, name=name) for name in ("charge", "refund"))

    assert results(charge, call(1)) + results(refund, call(1)) == [1, second]
    record = next(iter(memory._records.values()))
    expected = (guard.get("scope", "charge"), "1", guard.get("operation", "charge"))
    assert (record.scope, record.key, record.operation) == expected


def test_C3_a_direct_call_and_a_message_ask_for_the_same(local):
    """JSON makes a text of each member's name."""
    charge = counting(local.app, lambda order_id, lines, **more: ..., key="order_id")
    lines = {2: 2, None: 3, True: 4, 1.5: [{0: {False: 5}}], 1e22: {"1": ({7: 8},)}}
    lines["price"] = Decimal("1.10")

    charge(1, lines, more=lines)

    assert local.deliver(local.send(charge, 1, lines, more=lines)).value == 1


class Kind(str, Enum):
    CARD = "card"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    "key",
    [
        "kind",
        "{kind}-{level}",
        lambda kind, level, **more: f"{kind}",
        lambda kind, level, **more: f"{more}",
    ],
)
def test_C1_an_enum_is_its_value_in_a_direct_call_as_in_a_message(local, key):
    charge = counting(local.app, lambda kind, level, **more: ..., key=key)

    charge(Kind.CARD, Level.HIGH, lines=[Kind.CARD, {"kind": Kind.CARD}])

    again = local.send(charge, "card", 3, lines=["card", {"kind": "card"}])
    assert local.deliver(again).value == 1
