"""Tasks that run in place: ``apply``, ``task_always_eager``, and inside a TestCase (C12, C11)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery import Task
from django.db import transaction

from django_idempotency import InProgress
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect


@pytest.fixture
def effect(app: Any) -> Any:
    app.conf.task_always_eager = True

    @app.task
    @idempotent_task(key="name")
    def effect(name: str) -> int:
        return int(Effect.objects.create(name=name).pk)

    return effect


@pytest.mark.django_db
def test_C12_inside_a_testcase_a_duplicate_gets_the_result(effect: Any) -> None:
    first, again = effect.delay("a"), effect.delay("a")

    assert (first.state, again.state) == ("SUCCESS", "SUCCESS")
    assert first.get() == again.get()
    assert Effect.objects.count() == 1
    assert IdempotencyRecord.objects.get().state == "COMPLETED"


@pytest.mark.django_db(transaction=True)
class TestTransactions:
    def test_C11_within_the_callers_transaction_it_commits_with_it(self, effect: Any) -> None:
        with transaction.atomic():
            effect.delay("a").get()
            assert IdempotencyRecord.objects.get().state == "COMPLETED"
            transaction.set_rollback(True)

        assert not Effect.objects.exists()
        assert not IdempotencyRecord.objects.exists()

    def test_C11_a_record_and_its_work_commit_together(self, app: Any) -> None:
        seen = []

        def look() -> None:
            seen.append((Effect.objects.count(), IdempotencyRecord.objects.get().state))

        @app.task
        @idempotent_task(key="name")
        def task(name: str) -> None:
            Effect.objects.create(name=name)
            transaction.on_commit(look)

        task("a")

        assert seen == [(1, "COMPLETED")]


@pytest.mark.usefixtures("memory")
class TestMemory:
    def test_C12_an_in_progress_duplicate_may_wait(self, app: Any) -> None:
        @app.task
        @idempotent_task(key="name", on_in_progress="wait", wait=0.05)
        def outer(name: str) -> float:
            started = time.monotonic()
            assert isinstance(outer.apply([name]).result, InProgress)
            return time.monotonic() - started

        assert outer.apply(["a"]).get() >= 0.05

    def test_C12_retries_run_in_place(self, app: Any) -> None:
        app.conf.task_always_eager = True
        runs = []

        @app.task(bind=True)
        @idempotent_task
        def flaky(self: Task) -> int:
            runs.append(self.request.retries)
            if len(runs) < 3:
                raise self.retry()
            return len(runs)

        results = [flaky.apply_async(task_id="one").get() for _ in range(2)]

        assert (results, runs) == ([3, 3], [0, 1, 2])
