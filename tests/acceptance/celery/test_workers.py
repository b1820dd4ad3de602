"""Chains, chords, retries, limits and children in a real worker (C7, C9, C10, C14, C15)."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from celery import chain, chord

from django_idempotency.models import IdempotencyRecord
from tests.acceptance.celery.stage import Test
from tests.app.models import Effect
from tests.services.celery import CeleryWorker
from tests.unit.celery.conftest import WorkerFactory

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(scope="module", autouse=True)
def worker(workers: WorkerFactory) -> CeleryWorker:
    return workers(concurrency=4)[0]


def effects() -> Counter[str]:
    return Counter(Effect.objects.values_list("name", flat=True))


class TestCanvas:
    def test_C14_a_chain(self, stage: Test) -> None:
        result = chain(
            stage.sig("add", 1, 2), stage.sig("add", 3), stage.sig("add", 4), app=stage.app
        ).apply_async()

        assert stage.end(result.id) == ("SUCCESS", 10)
        assert effects() == {"add": 3}

    def test_C14_a_chord(self, stage: Test) -> None:
        header = [stage.sig("add", number, 1) for number in (1, 2, 3)]
        result = chord(header, app=stage.app)(stage.sig("count"))

        assert stage.end(result.id) == ("SUCCESS", 3)
        assert effects() == {"add": 3}

    def test_C7_C14_a_task_is_replaced_once(self, stage: Test) -> None:
        task = stage.send("replaced", 5, 6)

        assert stage.end(task) == ("SUCCESS", 11)
        assert effects() == {"replaced": 1, "add": 1}

    def test_C14_a_callback_is_sent_again_and_runs_once(self, stage: Test) -> None:
        after = stage.sig("add", 1).set(task_id="after")

        for _ in range(2):
            stage.send("add", 1, task_id="before", link=after)
            stage.wait_for("succeeded", id="before")
        stage.wait_for("succeeded", 2, id="after")

        assert stage.end("after") == ("SUCCESS", 2)
        assert effects() == {"add": 2}


class TestRetries:
    @pytest.mark.parametrize("task", ["retries", "autoretries"])
    def test_C7_they_come_to_their_end_and_only_once(self, stage: Test, task: str) -> None:
        first = stage.send(task, task, 2)

        assert stage.end(first) == ("SUCCESS", 2)
        assert len(stage.wait_for("begun", 3, id=first)) == 3
        stage.send(task, task, 2, task_id=first)
        stage.wait_for("succeeded", 2, id=first)
        assert len(stage.events("begun", id=first)) == 3
        assert effects() == {task: 1}

    def test_C7_a_duplicate_of_a_final_failure_fails_at_once(self, stage: Test) -> None:
        first = stage.send("refused", "order-1")
        stage.wait_for("failed", id=first)

        again = stage.send("refused", "order-1")

        stage.wait_for("failed", id=again, error="ConnectionError")
        assert len(stage.events("begun", id=first)) == len(stage.events("retried", id=first)) + 1
        assert len(stage.events("retried", id=first)) == 2
        assert stage.events("begun", id=again) == stage.events("retried", id=again) == []


class TestLimits:
    def test_C9_a_soft_time_limit(self, stage: Test) -> None:
        task = stage.send("limited", "soft", 30, soft_time_limit=1)

        stage.wait_for("failed", id=task, error="SoftTimeLimitExceeded")
        assert IdempotencyRecord.objects.get(key=task).state == "FAILED"
        assert effects() == {}
        stage.send("limited", "soft", 0, task_id=task)
        stage.wait_for("succeeded", id=task)
        assert effects() == {"soft": 1}

    def test_C9_a_hard_time_limit(self, stage: Test) -> None:
        task = stage.send("limited", "hard", 30, time_limit=1)

        stage.wait_for("failed", id=task, error="TimeLimitExceeded")
        stage.send("limited", "hard", 0, task_id=task)
        stage.wait_for("succeeded", id=task)
        assert effects() == {"hard": 1}

    @pytest.mark.parametrize("how", ["revoked", "expired"])
    def test_C10_what_never_starts_leaves_no_record(self, stage: Test, how: str) -> None:
        options = {"expires": 0.3} if how == "expired" else {}
        task = stage.send("limited", how, 0, countdown=1, **options)
        if how == "revoked":
            stage.app.control.revoke(task)

        stage.wait_for("revoked", id=task)

        assert not IdempotencyRecord.objects.filter(key=task).exists()
        assert effects() == {}


class TestChildren:
    def test_C15_a_parent_that_is_killed_and_run_again_has_one_child(self, stage: Test) -> None:
        parent = stage.send("capture", "one")
        [begun] = stage.wait_for("begun", id=parent)

        os.kill(begun["pid"], signal.SIGKILL)
        stage.wait_for("begun", 2, id=parent)
        stage.go("one")

        assert stage.end(parent) == ("SUCCESS", "one")
        # Each run sent one before its commit, and the last one another one after it.
        stage.wait_for("succeeded", 3, of="tests.receipt")
        assert effects() == {"capture one": 1, "receipt one": 1}
