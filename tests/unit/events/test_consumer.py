"""The example's consumer of a queue, as a process of its own, on an SQS of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.services.dynamodb import ENVIRONMENT, LockedMoto
from tests.services.processes import ROOT

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[LockedMoto]:
    with LockedMoto() as server:
        yield server


@pytest.fixture
def queue(server: LockedMoto, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty queue, whose messages come again as soon as nobody has deleted them."""
    sqs = boto3.resource(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=server.url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    name = f"payments-{abs(hash(request.node.nodeid))}"
    yield sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "600"})
    sqs.meta.client.close()


@pytest.fixture
def manage(tmp_path: Path) -> Callable[..., str]:
    """`manage("migrate")`: a command of the example project on a database of its own."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")},
        **ENVIRONMENT,
        "EXAMPLE_DATABASE": str(tmp_path / "shop.sqlite3"),
    }

    def call(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "example_project.manage", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    call("migrate", "--verbosity", "0")
    return call


NEW_ORDER = """
from example_project.shop.models import Order
print(Order.objects.create(product="tea", quantity=1, total=500).pk)
"""
PAID = """
from example_project.shop.models import Order
print(sum(order.paid for order in Order.objects.all()))
"""


def in_shell(manage: Callable[..., str], code: str) -> str:
    return manage("shell", "--verbosity", "0", "--command", code).strip().splitlines()[-1]


def consume(manage: Callable[..., str], queue: Any, server: LockedMoto) -> str:
    words = ["--endpoint-url", server.url, "--wait", "0", "--once"]
    return manage("consume_payments", queue.url, *words)


def test_R26_event_that_is_in_the_queue_twice_counts_once(
    server: LockedMoto, queue: Any, manage: Callable[..., str]
) -> None:
    order = in_shell(manage, NEW_ORDER)
    for event in ("evt-1", "evt-2", "evt-1"):
        body = {"event": event, "order": order, "amount": 100}
        queue.send_message(MessageBody=json.dumps(body))

    said = consume(manage, queue, server)

    assert said == "3 done, 0 left in the queue\n"
    assert in_shell(manage, PAID) == "200"


def test_C7_bad_messages_are_left_and_the_others_are_done(
    server: LockedMoto, queue: Any, manage: Callable[..., str]
) -> None:
    order = in_shell(manage, NEW_ORDER)
    missing = "00000000-0000-4000-8000-000000000000"
    messages = [
        {"event": "evt-1", "order": order, "amount": 100},
        {"order": order, "amount": 100},  # no event: no key
        {"event": "evt-2", "order": missing, "amount": 100},
        {"event": "evt-1", "order": order, "amount": 999},  # the same event says something else
    ]
    for message in messages:
        queue.send_message(MessageBody=json.dumps(message))
    queue.send_message(MessageBody="not JSON")

    said = consume(manage, queue, server)

    assert said == "1 done, 4 left in the queue\n"
    assert in_shell(manage, PAID) == "100"
