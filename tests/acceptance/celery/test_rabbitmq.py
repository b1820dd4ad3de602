"""Killed workers and lost connections, with the messages on RabbitMQ (C8)."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator

import pytest

from tests.acceptance.celery.stage import MODES, Test
from tests.acceptance.celery.test_kills import DONE_TWICE, Held, effects
from tests.services import MissingService, may_be_missing
from tests.services.rabbitmq import URL_VARIABLE, RabbitMQServer
from tests.unit.celery.conftest import WorkerFactory

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(scope="module")
def amqp_url() -> Iterator[str]:
    if named := os.environ.get(URL_VARIABLE):
        yield named
        return
    try:
        server = RabbitMQServer()
    except MissingService as error:
        if may_be_missing():
            pytest.skip(str(error))
        raise
    with server:
        yield server.url


@pytest.fixture(scope="module")
def stage(broker_url: str, amqp_url: str) -> Iterator[Test]:
    """Messages on RabbitMQ; results and the log of events where they always are."""
    test = Test(broker_url, f"{uuid.uuid4().hex[:8]}:", amqp_url)
    yield test
    test.close()


@pytest.fixture(autouse=True)
def no_words_left(stage: Test) -> None:
    stage.client.delete(*[f"{stage.prefix}go:{mode}" for mode in MODES])


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
    assert effects() == DONE_TWICE


def test_C8_a_killed_worker(stage: Test, workers: WorkerFactory) -> None:
    [worker] = workers(concurrency=6, queues="worker")
    held = Held(stage, "worker")

    worker.kill()  # its connection is gone, so its messages come again at once
    [successor] = workers(concurrency=6, queues="worker")
    held.begun(2)
    ends = held.finish()
    successor.kill()

    assert {mode: state for mode, (state, _) in ends.items()} == dict.fromkeys(MODES, "SUCCESS")
    assert held.runs == dict.fromkeys(MODES, 2)
    assert effects() == DONE_TWICE


def test_C4_C6_the_same_message_again_has_one_effect(stage: Test, workers: WorkerFactory) -> None:
    # A queue of its own: what a killed worker had not acknowledged is in the other one again.
    [worker] = workers(concurrency=4, queues="again")
    task_id = str(uuid.uuid4())
    stage.go("joined", 9)
    tasks = [stage.send("held-joined", "joined", task_id=task_id, queue="again") for _ in range(5)]
    ends = {str(stage.end(task)) for task in tasks}
    worker.kill()

    assert len(ends) == 1
    assert effects() == {"joined": 1}
