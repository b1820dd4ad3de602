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
    def effect(name: str, fail: bool = False) -> int:
        created = Effect.objects.create(name=name)
        if fail:
            raise ValueError("boom")
        return int(created.pk)

    return effect


@pytest.mark.django_db(transaction=True)
class TestDatabase:
    def test_C12_a_duplicate_gets_the_result(self, effect: Any) -> None:
        first, again = effect.delay("a"), effect.delay("a")

        assert (first.state, again.state) == ("SUCCESS", "SUCCESS")
        assert first.get() == again.get()
        assert Effect.objects.count() == 1

    def test_C12_a_failure_rolls_back_and_runs_again(self, effect: Any) -> None:
        assert effect.delay("a", fail=True).state == "FAILURE"
        assert not Effect.objects.exists()
        assert effect.delay("a", fail=True).state == "FAILURE"

    def test_C11_within_the_callers_transaction_it_commits_with_it(self, effect: Any) -> None:
        with transaction.atomic():
            effect.delay("a").get()
            assert IdempotencyRecord.objects.get().state == "COMPLETED"
            transaction.set_rollback(True)

        assert not Effect.objects.exists()
        assert not IdempotencyRecord.objects.exists()
        assert effect.delay("a").state == "SUCCESS"

    def test_C11_a_record_and_its_work_commit_together(self, app: Any) -> None:
        seen = []

        @app.task
        @idempotent_task(key="name")
        def task(name: str) -> None:
            Effect.objects.create(name=name)
            transaction.on_commit(
                lambda: seen.append((Effect.objects.count(), IdempotencyRecord.objects.get().state))
            )
            raise_or_not.pop()()

        def boom() -> None:
            raise ValueError("boom")

        raise_or_not = [lambda: None, boom]
        with pytest.raises(ValueError, match="boom"):
            task("a")
        assert (Effect.objects.count(), IdempotencyRecord.objects.get().state) == (0, "FAILED")

        task("a")
        assert seen == [(1, "COMPLETED")]


@pytest.mark.django_db
def test_C12_inside_a_testcase(effect: Any) -> None:
    first, again = effect.delay("a"), effect.delay("a")

    assert first.get() == again.get()
    assert IdempotencyRecord.objects.get().state == "COMPLETED"


@pytest.mark.usefixtures("memory")
class TestInProgress:
    @pytest.mark.parametrize("always", [True, False], ids=["always eager", "apply"])
    def test_C12_an_in_progress_duplicate_is_an_error_at_once(self, app: Any, always: bool) -> None:
        app.conf.task_always_eager = always
        met = []

        @app.task
        @idempotent_task(key="name")
        def outer(name: str) -> None:
            met.append(outer.delay(name) if always else outer.apply([name]))

        assert outer.apply(["a"]).state == "SUCCESS"
        [duplicate] = met
        assert (duplicate.state, type(duplicate.result)) == ("FAILURE", InProgress)

    def test_C12_or_waits(self, app: Any) -> None:
        @app.task
        @idempotent_task(key="name", on_in_progress="wait", wait=0.2)
        def outer(name: str) -> float:
            started = time.monotonic()
            inner = outer.apply([name])
            assert isinstance(inner.result, InProgress)
            return time.monotonic() - started

        assert outer.apply(["a"]).get() >= 0.2

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

        result = flaky.apply_async(task_id="one")

        assert (result.state, result.get(), runs) == ("SUCCESS", 3, [0, 1, 2])
        assert flaky.apply_async(task_id="one").get() == 3
        assert len(runs) == 3

    def test_C12_errors_propagate_where_celery_is_told_so(self, app: Any) -> None:
        app.conf.update(task_always_eager=True, task_eager_propagates=True)

        @app.task
        @idempotent_task
        def task() -> None:
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            task.delay()
