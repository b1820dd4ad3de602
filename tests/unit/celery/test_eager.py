"""Tasks that run in place: ``apply``, ``task_always_eager``, and inside a TestCase (C12, C11)."""

from __future__ import annotations

import time

import pytest
from django.db import transaction

from django_idempotency import InProgress
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect


@pytest.fixture
def effect(app):
    app.conf.task_always_eager = True

    @app.task
    @idempotent_task(key="name")
    def effect(name):
        transaction.on_commit(lambda: seen.append((left(), state())))
        return Effect.objects.create(name=name).pk

    seen = effect.seen = []
    return effect


def state():
    return IdempotencyRecord.objects.get().state


def left():
    return Effect.objects.count()


@pytest.mark.django_db
def test_C12_inside_a_testcase_a_duplicate_gets_the_result(effect):
    first, again = effect.delay("a"), effect.delay("a")

    assert (first.state, again.state, first.get()) == ("SUCCESS", "SUCCESS", again.get())
    assert (left(), state()) == (1, "COMPLETED")


@pytest.mark.django_db(transaction=True)
def test_C11_within_the_callers_transaction_it_commits_with_it(effect):
    with transaction.atomic():
        effect.delay("a").get()
        assert state() == "COMPLETED"
        transaction.set_rollback(True)

    assert (left(), IdempotencyRecord.objects.count()) == (0, 0)


@pytest.mark.django_db(transaction=True)
def test_C11_a_record_and_its_work_commit_together(effect):
    effect("a")

    assert effect.seen == [(1, "COMPLETED")]


def test_C12_an_in_progress_duplicate_may_wait(app, memory):
    @app.task
    @idempotent_task(key="name", on_in_progress="wait", wait=0.05)
    def outer(name):
        started = time.monotonic()
        assert isinstance(outer.apply([name]).result, InProgress)
        return time.monotonic() - started

    assert outer.apply(["a"]).get() >= 0.05


def test_C12_retries_run_in_place(app, memory):
    app.conf.task_always_eager = True
    runs = []

    @app.task(bind=True)
    @idempotent_task
    def flaky(self):
        runs.append(self.request.retries)
        if len(runs) < 3:
            raise self.retry()
        return len(runs)

    results = [flaky.apply_async(task_id="one").get() for _ in range(2)]

    assert (results, runs) == ([3, 3], [0, 1, 2])
