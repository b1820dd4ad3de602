"""Killed workers: a pool process, and the whole worker (C8)."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

from tests.acceptance.celery.stage import MODES, Test
from tests.app.models import Effect
from tests.unit.celery.conftest import WorkerFactory

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]

#: The killed attempt's work had committed by itself, before its completion.
DONE_TWICE = {"joined": 1, "single": 1, "separate": 2, "redis": 2, "dynamodb": 2}


class Held:
    """
    A task in each mode that has begun, and waits for a word.

    On a queue of the test's own: what a killed worker has not acknowledged comes again, and its
    record may be gone by then, with the test that made it.
    """

    def __init__(self, stage: Test, queue: str) -> None:
        self.stage = stage
        self.tasks = {mode: stage.send(f"held-{mode}", mode, queue=queue) for mode in MODES}
        self.begun(1)

    def begun(self, runs: int) -> list[int]:
        """Wait until each task has begun so often; the process ids of the last time."""
        events = [self.stage.wait_for("begun", runs, id=task) for task in self.tasks.values()]
        return [one[-1]["pid"] for one in events]

    def finish(self) -> dict[str, Any]:
        """Let them all go on, and return their ends by mode."""
        for mode in self.tasks:
            self.stage.go(mode, 9)
        return {mode: self.stage.end(task) for mode, task in self.tasks.items()}

    @property
    def runs(self) -> dict[str, int]:
        return {mode: len(self.stage.events("begun", id=task)) for mode, task in self.tasks.items()}


@pytest.fixture(autouse=True)
def no_words_left(stage: Test) -> None:
    stage.client.delete(*[f"{stage.prefix}go:{mode}" for mode in MODES])


def effects() -> Counter[str]:
    return Counter(Effect.objects.values_list("name", flat=True))


def test_C8_a_killed_pool_process(stage: Test, workers: WorkerFactory) -> None:
    [worker] = workers(concurrency=6, queues="process")
    held = Held(stage, "process")

    for pid in held.begun(1):
        assert pid in worker.pool_pids()
        os.kill(pid, signal.SIGKILL)
    held.begun(2)
    ends = held.finish()
    worker.kill()

    assert {mode: state for mode, (state, _) in ends.items()} == dict.fromkeys(MODES, "SUCCESS")
    assert held.runs == dict.fromkeys(MODES, 2)
    assert effects() == DONE_TWICE


def test_C8_a_killed_worker(stage: Test, workers: WorkerFactory) -> None:
    [worker] = workers(concurrency=6, queues="worker")
    held = Held(stage, "worker")

    worker.kill()
    [successor] = workers(concurrency=6, queues="worker")
    held.begun(2)
    ends = held.finish()
    successor.kill()

    assert {mode: state for mode, (state, _) in ends.items()} == dict.fromkeys(MODES, "SUCCESS")
    assert held.runs == dict.fromkeys(MODES, 2)
    assert effects() == DONE_TWICE
