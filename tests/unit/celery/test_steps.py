"""Tasks with steps: by the guard, for a message that comes again, and eagerly (T11, T17)."""

from __future__ import annotations

import pytest
from celery.exceptions import Ignore, Reject

import django_idempotency as idempotency
from django_idempotency import Uncertain, journal
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.contrib.celery.checks import check_tasks
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.celery.conftest import Done

pytestmark = pytest.mark.django_db(transaction=True)


class Boom(Exception):
    """What ends a task."""


class Import:
    """A task that takes steps, and ends its first runs as `end` says."""

    def __init__(self, app, end, *, times=1, **options):
        self.runs, self.calls = 0, []

        @idempotent_task(key="name", transaction="steps", **options)
        def load(task, name):
            self.runs += 1
            lease = idempotency.current()
            first = idempotency.step("first", self.effect, "first")
            lease.external("call", self.call, uncertain="repeat")
            if self.runs <= times:
                end(task)
            return [first, lease.step("last", self.effect, "last")]

        self.task = app.task(load, bind=True, name="load", default_retry_delay=0)

    def effect(self, name):
        Effect.objects.create(name=name)
        return name

    def call(self, key):
        self.calls.append(key)


def boom(task):
    raise Boom


def retry(task):
    raise task.retry(exc=Boom())


def retry_and_go_on(task):
    task.retry(exc=Boom(), throw=False)


def requeue(task):
    raise Reject("again", requeue=True)


def reject(task):
    raise Reject("no")


ENDS = {"raises": boom, "retry": retry, "retry goes on": retry_and_go_on}
ENDS |= {"Reject requeues": requeue, "Reject": reject}


def left():
    return [*Effect.objects.order_by("pk").values_list("name", flat=True)]


def record():
    return IdempotencyRecord.objects.get()


@pytest.mark.parametrize("end", ENDS)
def test_C7_T11_what_ends_a_run_after_a_step_leaves_it_failed_and_the_next_goes_on(local, end):
    load = Import(local.app, ENDS[end])
    message = local.send(load.task, "file")

    local.deliver(message)

    names = ["first", "call"] + (["last"] if end == "retry goes on" else [])
    assert (record().state, [*journal.read(record().steps).results]) == ("FAILED", names)
    local.sent()
    assert local.deliver(message) == Done("SUCCESS", ["first", "last"])
    assert local.deliver(message) == Done("SUCCESS", ["first", "last"])
    assert (left(), len(load.calls), load.runs) == (["first", "last"], 1, 2)
    assert (record().state, record().steps) == ("COMPLETED", None)


def test_C7_S13_ignore_drops_no_question(local):
    task = refused(local.app, [], ignores=True)
    message = local.send(task, "bill")
    assert local.deliver(message).state == "IGNORED"
    assert (record().state, record().expires_at) == ("FAILED", None)
    assert journal.read(record().steps).uncertain == ("charge",)
    assert type(local.deliver(message).value) is Uncertain


def refused(app, calls, task=None, ignores=False, **options):
    """Return a task whose one call is uncertain from its first run on, which it may ignore."""

    def call(key):
        calls.append(key)
        raise TimeoutError

    @app.task(name="pay", **(task or {}))
    @idempotent_task(key="name", transaction="steps", **options)
    def pay(name):
        try:
            idempotency.external("charge", call, uncertain="refuse")
        except TimeoutError:
            if ignores:
                raise Ignore from None
        idempotency.external("charge", call, uncertain="refuse")

    return pay


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"on_in_progress": "ignore"},
        {"on_in_progress": "raise"},
        {"on_in_progress": "wait", "wait": 60},
        {"on_failed": "replay"},
        {"on_duplicate": "raise"},
        {"on_duplicate": "ignore"},
        {"task": {"autoretry_for": (Exception,), "dont_autoretry_for": (Uncertain,)}},
    ],
    ids=str,
)
def test_T12_a_task_with_an_uncertain_call_fails_and_so_does_each_duplicate(local, options, caplog):
    calls = []
    task = refused(local.app, calls, **options)
    message, duplicate = local.send(task, "bill"), local.send(task, "bill")
    for delivered in (message, message, duplicate):
        done = local.deliver(delivered)
        assert (done.state, type(done.value), done.value.step) == ("FAILURE", Uncertain, "charge")
        assert local.sent() == []
        assert record().state == "FAILED"
        assert journal.read(record().steps).uncertain == ("charge",)
    assert calls == [done.value.key]
    assert "nothing sends it again" not in caplog.text


@pytest.mark.parametrize("way", ["eager", "called"])
def test_C12_T17_a_task_runs_eagerly_and_called_as_a_function_with_its_steps(local, way):
    load = Import(local.app, boom)
    local.app.conf.task_always_eager = True

    def send():
        if way == "called":
            return load.task("file")
        return load.task.delay("file").get()

    with pytest.raises(Boom):
        send()
    assert send() == ["first", "last"]
    assert (left(), len(load.calls)) == (["first", "last"], 1)


def test_T16_a_time_limit_says_nothing_against_steps(local, settings, monkeypatch):
    """Each note is a new beginning for max_duration, and no transaction is long."""
    options = {"acks_late": True, "reject_on_worker_lost": True, "time_limit": 7200}
    separate = idempotent_task(key="name", transaction="separate")
    steps = idempotent_task(key="name", transaction="steps")
    joined = idempotent_task(key="name", transaction="joined")

    def work(name):
        return name

    for name, guard in {"separate": separate, "steps": steps, "joined": joined}.items():
        local.app.task(guard(work), name=f"limits.{name}", **options)
    found = {}
    for message in check_tasks():
        for name in ("separate", "steps", "joined"):
            if f"limits.{name} " in message.msg:
                found.setdefault(name, []).append(message.id[-4:])
    assert found == {"separate": ["W030"], "joined": ["W030", "W035"]}


def test_E031_a_store_that_cannot_note_is_told_of(local, monkeypatch):
    from django_idempotency.stores.database import DatabaseStore

    monkeypatch.setattr(DatabaseStore, "supports_steps", False)

    @local.app.task(name="unable", acks_late=True, reject_on_worker_lost=True)
    @idempotent_task(key="name", transaction="steps")
    def unable(name):
        return name

    [error] = [it for it in check_tasks() if it.id == "django_idempotency.E031"]
    assert "needs a store that can note them" in error.msg
