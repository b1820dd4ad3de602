"""Redelivered messages on brokers: in their own delivery, or sent again (C6, C8); more in proof."""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import closing

import boto3
import pytest
from amqp.exceptions import NotFound

from django_idempotency.contrib.celery import messages
from tests.acceptance.celery.stage import DENIED, SECONDS
from tests.acceptance.effects import effects
from tests.services.processes import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def queue():
    return f"b-{uuid.uuid4().hex[:6]}"


def runs_in_its_own_delivery(stage, start_workers, queue, name, *, pool="prefork"):
    """Kill a task; return the seconds from the kill to its second run."""
    [worker] = start_workers(stage=stage, queues=queue, pool=pool)
    task = stage.send("held-joined", name, queue=queue)
    [begun] = stage.wait_for("begun", id=task)

    killed = time.monotonic()
    if pool == "prefork":
        os.kill(begun["pid"], signal.SIGKILL)
    else:
        worker.kill()
        start_workers(stage=stage, queues=queue, pool=pool)
    again = stage.wait_for("begun", 2, id=task)[-1]
    stage.go(name, 9)

    assert stage.end(task)[0] == "SUCCESS"
    assert stage.events("sent", id=task) == []
    assert effects() == {name: 1}
    return again["at"] - killed


def comes_again_as_it_was_sent(stage, start_workers, queue, name):
    """Send a set by pickle, and again; no worker takes messages from the default queue."""
    start_workers(stage=stage, queues=queue)
    how = {"queue": queue, "serializer": "pickle", "compression": "gzip"}
    task = stage.send("numbers", name, {1, 2}, **how)
    stage.wait_for("begun", id=task)

    stage.send("numbers", name, {1, 2}, task_id=task, **how)
    stage.wait_for("sent", 2, id=task)
    stage.go(name, 9)
    stage.wait_for("succeeded", 2, id=task)

    assert stage.end(task) == ("SUCCESS", 3)
    assert effects() == {name: 1}


def is_dead_lettered(stage, start_workers, count):
    start_workers(stage=stage, queues="poison")
    before = count()

    task = stage.send("poison", "poison", queue="poison")
    wait_until(lambda: count() > before, seconds=SECONDS, what="a dead letter")

    assert len(stage.events("begun", id=task)) in (3, 4)
    assert stage.events("sent", id=task) == []
    assert effects() == {}


@pytest.mark.parametrize("broker", ["quorum", "sqs"])
def test_C8_a_killed_task_runs_in_its_own_delivery(stage_on, start_workers, queue, broker):
    runs_in_its_own_delivery(stage_on(broker), start_workers, queue, f"killed {broker}")


@pytest.mark.parametrize("broker", ["quorum", "redis"])
def test_C6_a_duplicate_comes_again_from_its_queue_as_it_was_sent(
    stage_on, start_workers, queue, broker
):
    comes_again_as_it_was_sent(stage_on(broker), start_workers, queue, f"again {broker}")


def test_C8_a_poison_message_reaches_the_limit_of_a_quorum_queue(stage_on, start_workers):
    stage = stage_on("quorum")

    def count():
        with stage.app.connection_for_read() as connection:
            return connection.channel().queue_declare("dead", passive=True).message_count

    with stage.app.connection_for_read() as connection:
        connection.channel().queue_declare("dead", durable=True, auto_delete=False)
    is_dead_lettered(stage, start_workers, count)


def redrive(sqs_url, prefix):
    """Make a queue with a redrive policy on SQS; return the function that counts dead letters."""
    account = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    sqs = boto3.client("sqs", endpoint_url=sqs_url, region_name="eu-west-1", **account)
    dead = sqs.create_queue(QueueName=f"{prefix}dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]
    policy = f'{{"deadLetterTargetArn": "{arn["QueueArn"]}", "maxReceiveCount": "3"}}'
    attributes = {"RedrivePolicy": policy, "VisibilityTimeout": "10"}
    sqs.create_queue(QueueName=f"{prefix}poison", Attributes=attributes)
    name = "ApproximateNumberOfMessages"

    def count():
        found = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=[name])
        return int(found["Attributes"][name])

    return count


def test_C6_a_worker_that_may_send_nothing_loses_nothing(
    stage_on, start_workers, queue, monkeypatch
):
    stage = stage_on("sqs")
    monkeypatch.setitem(stage.environment, DENIED, "yes")
    start_workers(stage=stage, queues=queue)
    task = stage.send("held-joined", "denied", queue=queue)
    stage.wait_for("begun", id=task)

    stage.send("held-joined", "denied", queue=queue, task_id=task)
    stage.wait_for("denied", id=task)
    stage.go("denied", 9)
    stage.wait_for("succeeded", 2, id=task)

    assert stage.end(task)[0] == "SUCCESS"
    assert effects() == {"denied": 1}


def test_C6_rabbitmq_confirms_what_it_takes(stage_on):
    app = stage_on("quorum").app

    with (
        messages._producer(app, "amqp") as producer,
        closing(producer.connection),
        pytest.raises(NotFound),
    ):
        producer.publish("lost", exchange="nowhere", routing_key="b")
