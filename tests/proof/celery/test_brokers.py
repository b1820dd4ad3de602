"""Each broker and each pool: what a killed worker, a poison message and a time limit leave."""

from __future__ import annotations

import os
import signal

import pytest

from tests.acceptance.celery.stage import LEASE
from tests.acceptance.celery.test_redelivery import (  # noqa: F401
    comes_again_as_it_was_sent,
    is_dead_lettered,
    queue,
    redrive,
    runs_in_its_own_delivery,
)
from tests.acceptance.effects import effects

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]

POOLS = ["prefork", "threads", "gevent", "solo"]


@pytest.mark.parametrize(
    ("broker", "pool"),
    [
        *((broker, pool) for broker in ("rabbitmq", "quorum", "sqs") for pool in POOLS),
        # A gevent worker that neither gossips nor sends heartbeats, as ours, never looks for what
        # Redis is to deliver again, guarded or not.
        *(("redis", pool) for pool in POOLS if pool != "gevent"),
        *(("quorum direct", "prefork"), ("topic", "prefork")),
    ],
)
def test_C8_C13_a_killed_task_has_one_effect(stage_on, start_workers, queue, broker, pool):  # noqa: F811
    """On Redis a killed worker's messages come back when its visibility timeout lets them."""
    name = f"{broker} {pool}"
    seconds = runs_in_its_own_delivery(stage_on(broker), start_workers, queue, name, pool=pool)

    if pool == "prefork" and broker != "sqs":  # the others start a worker anew
        assert seconds < LEASE + 2


@pytest.mark.parametrize("mode", ["single", "separate", "redis", "dynamodb"])
def test_C8_a_killed_task_waits_in_each_mode_and_store(stage_on, start_workers, queue, mode):  # noqa: F811
    """A record reads the same at the claim and at each look: else its lease seems renewed."""
    stage = stage_on("rabbitmq")
    start_workers(stage=stage, queues=queue)
    task = stage.send(f"held-{mode}", f"in {mode}", queue=queue)
    [begun] = stage.wait_for("begun", id=task)

    os.kill(begun["pid"], signal.SIGKILL)
    stage.wait_for("begun", 2, id=task)
    stage.go(f"in {mode}", 9)

    assert stage.end(task)[0] == "SUCCESS"
    assert stage.events("sent", id=task) == []


@pytest.mark.parametrize("broker", ["redis"])
def test_C8_a_killed_task_on_redis_has_one_effect(stage_on, start_workers, queue, broker):  # noqa: F811
    seconds = runs_in_its_own_delivery(stage_on(broker), start_workers, queue, f"killed {broker}")

    assert seconds < LEASE + 2


@pytest.mark.parametrize("broker", ["rabbitmq", "quorum direct", "topic", "sqs"])
def test_C6_a_duplicate_comes_again_as_it_was_sent(stage_on, start_workers, queue, broker):  # noqa: F811
    comes_again_as_it_was_sent(stage_on(broker), start_workers, queue, f"again {broker}")


def test_C8_a_poison_message_is_redriven_by_sqs(stage_on, start_workers, sqs_url):
    stage = stage_on("sqs")
    is_dead_lettered(stage, start_workers, redrive(sqs_url, stage.prefix.rstrip(":")))


def test_C9_a_hard_limit_that_is_shorter_than_the_lease_loses_nothing(
    stage_on,
    start_workers,
    queue,  # noqa: F811
):
    stage = stage_on("rabbitmq")
    start_workers(stage=stage, queues=queue)
    task = stage.send("numbers", "short", [1], queue=queue, time_limit=14)
    [begun] = stage.wait_for("begun", id=task)

    os.kill(begun["pid"], signal.SIGKILL)
    stage.go("short", 9)

    assert stage.end(task) == ("SUCCESS", "list")
    assert stage.events("sent", id=task)
    assert effects() == {"short": 1}
