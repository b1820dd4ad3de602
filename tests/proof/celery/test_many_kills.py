"""Hundreds of tasks while the processes of the pool are killed at random (C8)."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from tests.acceptance.effects import effects
from tests.app.models import Effect

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]

TASKS = 2000
KILLS = 200
SECONDS = 600


def at_work(stage):
    """The processes that have begun a task, and have neither ended it nor themselves."""
    ended = {event["id"] for event in stage.events("succeeded")}
    latest = {event["id"]: event["pid"] for event in stage.events("begun")}
    return [pid for task, pid in latest.items() if task not in ended and is_alive(pid)]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("broker", ["redis", "quorum"])
def test_C8_I5_no_effect_is_missing_and_none_is_doubled(stage_on, start_workers, broker):
    stage, queue = stage_on(broker), f"kills-{broker}"
    start_workers(stage=stage, concurrency=6, queues=queue)
    names = [f"order {number}" for number in range(TASKS)]
    tasks = [
        stage.send(f"quick-{('joined', 'single')[number % 2]}", name, queue=queue)
        for number, name in enumerate(names)
    ]

    kills = 0
    deadline = time.monotonic() + SECONDS
    while Effect.objects.count() < TASKS or kills < KILLS:
        assert time.monotonic() < deadline, "some are never done"
        if kills < KILLS and (pids := at_work(stage)):
            with suppress(ProcessLookupError):
                os.kill(random.choice(pids), signal.SIGKILL)
                kills += 1
        time.sleep(0.1)
    ends = [stage.end(task) for task in tasks]

    assert kills == KILLS
    assert len(stage.events("begun")) > TASKS + KILLS // 8, "few were killed while at work"
    sent = len(stage.events("sent"))
    runs = len(stage.events("begun"))
    print(f"{broker}: {runs} runs, {KILLS} kills, {sent} messages sent again")
    assert sent < KILLS // 4
    assert ends == [("SUCCESS", name) for name in names]
    assert effects() == dict.fromkeys(names, 1)
