"""Killed workers, with the messages on Redis and on RabbitMQ (C8), and other pools (C13)."""

from __future__ import annotations

import os
import signal

import pytest
from celery.canvas import xstarmap

from tests.acceptance.celery.stage import MODES
from tests.acceptance.effects import effects

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_C8_killed_pool_processes_and_then_a_killed_worker(request, start_workers, broker):
    stage = request.getfixturevalue({"redis": "stage"}.get(broker, f"{broker}_stage"))
    # A slot for each task, and for its duplicate, which waits in its delivery.
    slots = {"concurrency": 2 * len(MODES), "queues": "killed"}
    [worker] = start_workers(stage=stage, **slots)
    tasks = {mode: stage.send(f"held-{mode}", mode, queue="killed") for mode in MODES}

    def begun(runs):
        """Wait until each task has begun so often; the process ids of the last time."""
        return [stage.wait_for("begun", runs, id=task)[-1]["pid"] for task in tasks.values()]

    for pid in begun(1):
        assert pid in worker.pool_pids()
        os.kill(pid, signal.SIGKILL)
    begun(2)
    worker.kill()
    start_workers(stage=stage, **slots)
    begun(3)
    for mode in MODES:
        stage.go(mode, 9)

    assert {stage.end(task)[0] for task in tasks.values()} == {"SUCCESS"}
    assert [len(stage.events("begun", id=task)) for task in tasks.values()] == [3] * len(MODES)
    # A killed attempt's work had committed by itself, before its completion.
    assert effects() == {"joined": 1, "single": 1, "separate": 3, "redis": 3, "dynamodb": 3}


def test_C8_a_killed_pool_process_loses_no_part_of_a_starmap(stage, start_workers):
    start_workers(stage=stage, concurrency=2, queues="starmap")
    names = ["x1", "x2", "x3", "x4"]
    each = [(name, name == "x2") for name in names]

    task = xstarmap(stage.sig("mapped"), each, app=stage.app).apply_async(queue="starmap")

    assert stage.end(task.id) == ("SUCCESS", names)
    assert effects() == dict.fromkeys(names, 1)


def test_C13_C8_a_lease_is_renewed_in_each_pool(stage, start_workers):
    modes = ["joined", "separate", "redis"]
    held = {"threads": modes, "gevent": modes, "solo": ["joined"]}
    for pool in held:
        start_workers(stage=stage, pool=pool, concurrency=4, queues=pool)
    tasks = {
        f"{pool} {mode}": stage.send(f"held-{mode}", f"{pool} {mode}", queue=pool)
        for pool, modes in held.items()
        for mode in modes
    }
    for task in tasks.values():
        stage.wait_for("begun", id=task)

    # Another worker gets the messages when the broker has lost its patience with the first.
    start_workers(stage=stage, pool="threads", concurrency=8, queues=",".join(held))
    for task in tasks.values():
        stage.wait_for_a_refusal_after_the_lease(task)
    for name in tasks:
        stage.go(name, 9)
    for task in tasks.values():
        stage.wait_for("succeeded", 2, id=task)

    assert [len(stage.events("begun", id=task)) for task in tasks.values()] == [1] * len(tasks)
    assert effects() == dict.fromkeys(tasks, 1)
