"""A broker with workers that all tests share, and workers of a test's own, to be killed."""

from __future__ import annotations

import os
import sys
import uuid
from contextlib import ExitStack, contextmanager
from functools import cache

import pytest

from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.schema import create
from tests.acceptance.celery.stage import Test
from tests.services import or_skip
from tests.services.celery import CeleryWorker
from tests.services.databases import environment_for_children
from tests.services.dynamodb import ENVIRONMENT, LockedMoto, dynamodb_url
from tests.services.rabbitmq import URL_VARIABLE, RabbitMQServer
from tests.services.redis import redis_url


@contextmanager
def service(make):
    with ExitStack() as stack:
        yield or_skip(lambda: stack.enter_context(make()))


@pytest.fixture(scope="session")
def broker_url():
    """A server of the run's own, that keeps messages, results, and what tests and tasks tell."""
    version = "valkey9" if sys.version_info >= (3, 11) else "redis6"
    with service(lambda: redis_url(version)) as url:
        yield url


@pytest.fixture(scope="session")
def amqp_url():
    if named := os.environ.get(URL_VARIABLE):
        yield named
        return
    with service(RabbitMQServer) as server:
        yield server.url


@pytest.fixture(scope="session")
def tasks_table():
    """A DynamoDB of the run's own, with the table of the workers' store."""
    with service(dynamodb_url) as url:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in ENVIRONMENT.items():
                patch.setenv(name, value)
            create(DynamoDBStore(table_name="tasks", endpoint_url=url, timeout=10))
        yield url


@pytest.fixture(scope="session")
def stage(broker_url):
    with Test(broker_url, f"{uuid.uuid4().hex[:8]}:") as test:
        yield test


@pytest.fixture(scope="session")
def rabbitmq_stage(broker_url, amqp_url):
    """Messages on RabbitMQ; results and the log of events where they always are."""
    with Test(broker_url, f"{uuid.uuid4().hex[:8]}:", amqp_url) as test:
        yield test


@pytest.fixture(scope="session")
def sqs_url():
    """An SQS of the run's own."""
    with service(LockedMoto) as server:
        yield server.url


#: New queues of RabbitMQ are quorum queues, bound to topic exchanges of their own.
QUORUM = {
    "task_default_queue_type": "quorum",
    "task_default_exchange_type": "topic",
    "task_create_missing_queue_type": "quorum",
    "task_create_missing_queue_exchange_type": "topic",
    "task_queues": {
        "celery": {"exchange": "celery", "exchange_type": "topic", "routing_key": "celery"},
        "poison": {
            "exchange": "poison",
            "routing_key": "poison",
            "queue_arguments": {
                "x-queue-type": "quorum",
                "x-delivery-limit": 3,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "dead",
            },
        },
    },
}
#: What RabbitMQ has beside classic queues and direct exchanges.
AMQP = {
    "quorum": QUORUM,
    "quorum direct": {
        "task_default_queue_type": "quorum",
        "task_create_missing_queue_type": "quorum",
    },
    "topic": {
        "task_default_exchange_type": "topic",
        "task_create_missing_queue_exchange_type": "topic",
    },
}


@pytest.fixture(scope="session")
def stage_on(request, broker_url):
    """`stage_on(broker)`: the messages of these tests on that broker, some of them by pickle."""
    with ExitStack() as stack:

        @cache
        def stage_on(broker):
            prefix, settings = uuid.uuid4().hex[:8], {"accept_content": ["json", "pickle"]}
            url = None
            if broker == "sqs":
                url = request.getfixturevalue("sqs_url").replace(
                    "http://", "sqs://testing:testing@"
                )
                settings["broker_transport_options"] = {
                    "region": "eu-west-1",
                    "queue_name_prefix": prefix,
                    "wait_time_seconds": 1,
                    "polling_interval": 0.1,
                    "visibility_timeout": 10,
                }
            elif broker != "redis":
                url = request.getfixturevalue("amqp_url")
                settings |= AMQP.get(broker, {})
            stage = stack.enter_context(Test(broker_url, f"{prefix}:", url, settings=settings))
            stage.environment["C_FORCE_ROOT"] = "yes"  # Celery's root takes no pickle otherwise
            return stage

        yield stage_on


@pytest.fixture(scope="session")
def worker_environment(tasks_table, django_db_setup):
    """What makes a worker use the run's own stores."""
    table = {"IDEMPOTENCY_TEST_TASKS_DYNAMODB": tasks_table, **ENVIRONMENT}
    return {**environment_for_children(), **table}


@contextmanager
def _factory(environment):
    """`start(number, stage=…)`: start so many workers at once; what they write is shown."""
    with ExitStack() as stack:

        def start(number=1, *, stage, **arguments):
            arguments["env"] = {**environment, **stage.environment}
            found = [CeleryWorker(**arguments) for _ in range(number)]
            for worker in found:
                stack.callback(worker.close)
                worker.launch()
            return [worker.start() for worker in found]

        yield start


@pytest.fixture(scope="session")
def workers(stage, worker_environment):
    """Two workers on the run's own database, for all tests that kill no worker."""
    with _factory(worker_environment) as start:
        yield start(2, stage=stage, concurrency=6)


@pytest.fixture(scope="session")
def calm(broker_url, worker_environment):
    """A stage with a worker of its own, where each message comes once, however long it takes."""
    with (
        Test(broker_url, f"{uuid.uuid4().hex[:8]}:", visibility=3600) as stage,
        _factory(worker_environment) as start,
    ):
        start(stage=stage, concurrency=4)
        yield stage


@pytest.fixture
def start_workers(worker_environment):
    """Start workers that end with the test; on queues of its own."""
    with _factory(worker_environment) as start:
        yield start
