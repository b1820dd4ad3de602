"""The tasks that workers run in the tests; the first of them in every way to commit."""

from __future__ import annotations

import os
import signal
import time
import uuid
from typing import Any

from celery import Task, shared_task, signals

import django_idempotency as idempotency
from django_idempotency.contrib.celery import from_parent, idempotent_task
from tests.acceptance.celery.stage import LEASE, MODES, stage_of_process
from tests.app.models import Effect


def begin(task, name, *, wait=False):
    """Leave an effect, and wait for the test's word before it is committed."""
    Effect.objects.create(name=name)
    with stage_of_process() as stage:
        stage.tell("begun", id=task.request.id, name=name)
        if wait:
            stage.wait_for_word(name)


def held(self, name):
    begin(self, name, wait=True)
    return {"name": name, "made": str(uuid.uuid4())}


def stalled(self, name):
    """Wait in the first delivery alone."""
    with stage_of_process() as stage:
        again = stage.client.set(f"{stage.prefix}first:{self.request.id}", 1, get=True)
    begin(self, name, wait=not again)
    return str(uuid.uuid4())


def quick(self, name):
    begin(self, name)
    time.sleep(0.1)
    return name


for _mode, _options in MODES.items():
    for _work, _lease in ((held, LEASE), (stalled, LEASE), (quick, 1)):
        _guarded = idempotent_task(lease=_lease, renew=_work is not stalled, **_options)(_work)
        shared_task(name=f"tests.{_work.__name__}-{_mode}", bind=True)(_guarded)


@shared_task(name="tests.poison", bind=True)
@idempotent_task(lease=1)
def poison(self, name):
    """Kill the process of each delivery."""
    begin(self, name)
    os.kill(os.getpid(), signal.SIGKILL)


@shared_task(name="tests.mapped")
@idempotent_task(key="name", lease=2)
def mapped(name, kills):
    """Kill the process of the first run, if the test wants that."""
    Effect.objects.create(name=name)
    with stage_of_process() as stage:
        again = stage.client.set(f"{stage.prefix}first:{name}", 1, get=True)
    if kills and not again:
        os.kill(os.getpid(), signal.SIGKILL)
    return name


@shared_task(name="tests.numbers", bind=True)
@idempotent_task(lease=15)
def numbers(self, name, given):
    begin(self, name, wait=True)
    return sum(given) if isinstance(given, set) else type(given).__name__


@shared_task(name="tests.retries", bind=True, max_retries=5)
@idempotent_task
def retries(self, name, failures):
    begin(self, name)
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


class Declined(Exception):
    """Of which no process but a worker knows."""


@shared_task(name="tests.declines", bind=True)
@idempotent_task(on_failed="replay")
def declines(self, name):
    begin(self, name)
    raise Declined("no money", 7)


@shared_task(name="tests.add")
@idempotent_task
def add(*numbers):
    Effect.objects.create(name="add")
    return sum(sum(number) if isinstance(number, list) else number for number in numbers)


@shared_task(name="tests.count")
@idempotent_task
def count(results):
    return len(results)


@shared_task(name="tests.replaced", bind=True)
@idempotent_task
def replaced(self, *numbers):
    Effect.objects.create(name="replaced")
    return self.replace(add.s(*numbers))


@shared_task(name="tests.receipt")
@idempotent_task(key=from_parent("receipt"))
def receipt(name):
    Effect.objects.create(name=f"receipt {name}")
    return name


@shared_task(name="tests.capture", bind=True)
@idempotent_task(key="name", lease=1)
def capture(self, name):
    """Start a child now, and another one at the commit."""
    receipt.delay_on_commit(name)
    receipt.delay(name)
    begin(self, name, wait=True)
    return name


@shared_task(name="tests.limited", bind=True)
@idempotent_task(lease=1)
def limited(self, name, seconds):
    begin(self, name)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.05)  # one long sleep would outlast a signal that another thread is given
    return name


def be_killed(stage):
    """Take long while processes are to be killed, so that no work ends before that."""
    time.sleep(0.5 if stage.client.exists(f"{stage.prefix}kills") else 0.02)


def leave(name):
    """Be the work of a step, which a kill may meet anywhere."""
    Effect.objects.create(name=name)
    with stage_of_process() as stage:
        be_killed(stage)
    return name


@shared_task(name="tests.checkout", bind=True)
@idempotent_task(key="name", transaction="steps", lease=1)
def checkout(self, name):
    """Make an order, have it charged and paid, and send the receipt: four steps."""
    with stage_of_process() as stage:
        stage.tell("begun", id=self.request.id, name=name)

        def charge(key):
            """Ask a service that knows keys: the answer to the second call is that of the first."""
            be_killed(stage)
            stage.client.rpush(f"{stage.prefix}asked", key)
            stage.client.hsetnx(f"{stage.prefix}charges", key, name)
            be_killed(stage)
            return "ch_1"

        idempotency.step("order", leave, f"order {name}")
        charged = idempotency.external("charge", charge, uncertain="repeat")
        idempotency.step("paid", leave, f"paid {name} by {charged}")
        idempotency.external("receipt", lambda key: receipt.delay(name).id, uncertain="repeat")
    return name


@shared_task(name="tests.import", bind=True)
@idempotent_task(key="name", transaction="steps", lease=1)
def import_rows(self, name, count, batch):
    """Write rows, a step for each batch of them."""

    def load(start):
        with stage_of_process() as stage:
            stage.tell("batch", start=start)
            rows = (Effect(name=f"row {number}") for number in range(start, start + batch))
            Effect.objects.bulk_create(rows)
            be_killed(stage)

    for start in range(0, count, batch):
        idempotency.step(f"rows-{start}", load, start)
    return count


def _tell(what):
    def tell(sender: Task, **facts: Any) -> None:
        # A task that is retried or revoked has a request to tell of, one that fails an id.
        task = facts.get("task_id") or getattr(facts.get("request"), "id", sender.request.id)
        with stage_of_process() as stage:
            error = type(facts.get("exception")).__name__
            stage.tell(what, id=task, of=sender.name, error=error)

    return tell


def _tell_sent(headers: Any, **facts: Any) -> None:
    with stage_of_process() as stage:
        stage.tell("sent", id=headers["id"])


signals.after_task_publish.connect(_tell_sent, weak=False)
signals.task_retry.connect(_tell("retried"), weak=False)
signals.task_success.connect(_tell("succeeded"), weak=False)
signals.task_failure.connect(_tell("failed"), weak=False)
signals.task_revoked.connect(_tell("revoked"), weak=False)
