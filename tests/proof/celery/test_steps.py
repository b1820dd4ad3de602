"""Tasks with steps while the processes of the pool are killed at random: T1, P1 to P8."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import contextmanager, suppress

import pytest

from tests.acceptance.effects import effects
from tests.app.models import Effect
from tests.proof.celery.test_many_kills import at_work, is_alive

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]

SECONDS = 400
CHECKOUTS, CHECKOUT_KILLS = 500, 200
ROWS, BATCH, IMPORT_KILLS = 10_000, 500, 30


@contextmanager
def slow_work(stage):
    """Let work take long, while processes are to be killed in it."""
    stage.client.set(f"{stage.prefix}kills", 1)
    yield
    stage.client.delete(f"{stage.prefix}kills")


def kill(pid):
    """Kill a process of the pool; return whether it was there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def test_T1_each_checkout_has_one_order_one_charge_one_payment_and_one_receipt(
    stage_on, start_workers
):
    stage, queue = stage_on("redis"), "checkouts"
    start_workers(stage=stage, concurrency=8, queues=f"{queue},celery")
    names = [f"{number}" for number in range(CHECKOUTS)]

    killed, ends = 0, time.monotonic() + SECONDS
    with slow_work(stage):
        sent = [stage.send("checkout", name, queue=queue) for name in names]
        while killed < CHECKOUT_KILLS:
            assert time.monotonic() < ends, "nobody is at work"
            if pids := at_work(stage):
                killed += kill(random.choice(pids))
            time.sleep(0.05)
    while Effect.objects.filter(name__startswith="receipt").count() < CHECKOUTS:
        assert time.monotonic() < ends, "some are never done"
        time.sleep(0.05)
    told = [stage.end(task) for task in sent]

    asked = stage.client.lrange(f"{stage.prefix}asked", 0, -1)
    charges = stage.client.hgetall(f"{stage.prefix}charges")
    begun = len(stage.events("begun"))
    print(
        f"{begun} runs of {CHECKOUTS} checkouts, {killed} kills, {len(asked)} calls of the gateway"
    )
    assert killed == CHECKOUT_KILLS
    assert begun > CHECKOUTS + CHECKOUT_KILLS // 8, "few were killed while at work"
    assert told == [("SUCCESS", name) for name in names]
    assert sorted(charges.values()) == sorted(names)
    assert effects() == {
        **{f"order {name}": 1 for name in names},
        **{f"paid {name} by ch_1": 1 for name in names},
        **{f"receipt {name}": 1 for name in names},
    }


def test_T1_an_import_that_is_killed_loses_one_batch_of_work_a_kill(stage_on, start_workers):
    stage, queue = stage_on("redis"), "imports"
    start_workers(stage=stage, concurrency=2, queues=queue)
    before = len(stage.events("batch"))

    killed, seen, ends = 0, 0, time.monotonic() + SECONDS
    with slow_work(stage):
        task = stage.send("import", "file", ROWS, BATCH, queue=queue)
        while killed < IMPORT_KILLS:
            assert time.monotonic() < ends, "it does not come again"
            batches = stage.events("batch")[before:]
            # One of ten batches is spared, so that the import goes on between two kills.
            if len(batches) > seen:
                seen = len(batches)
                if is_alive(batches[-1]["pid"]) and random.random() < 0.9:
                    time.sleep(random.random() * 0.4)
                    killed += kill(batches[-1]["pid"])
            time.sleep(0.01)

    assert stage.end(task) == ("SUCCESS", ROWS)
    runs = len(stage.events("batch")[before:])
    print(f"{runs} runs of {ROWS // BATCH} batches, {killed} kills")
    assert runs <= ROWS // BATCH + IMPORT_KILLS
    assert effects() == {f"row {number}": 1 for number in range(ROWS)}
