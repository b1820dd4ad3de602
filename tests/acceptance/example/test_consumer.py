"""The example's consumer of a queue, as a process of its own, on an SQS of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.services.dynamodb import ENVIRONMENT, LockedMoto
from tests.services.processes import ROOT

pytestmark = pytest.mark.processes

NEW_ORDER = """
from django.core.management import call_command
from example_project.shop.models import Order
call_command("migrate", verbosity=0)
print(Order.objects.create(product="tea", quantity=1, total=500).pk)
"""
PAID = """
from example_project.shop.models import Order
print(sum(order.paid for order in Order.objects.all()))
"""


def client(url: str) -> Any:
    return boto3.client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


@pytest.fixture
def manage(tmp_path: Path) -> Callable[..., str]:
    """`manage("check")`: a command of the example project on a database of its own."""
    inherited = {k: value for k, value in os.environ.items() if not k.startswith("DJANGO_")}
    own = {**ENVIRONMENT, "EXAMPLE_DATABASE": str(tmp_path / "shop.sqlite3")}

    def manage(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "example_project.manage", *words],
            cwd=ROOT,
            env={**inherited, **own},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return manage


def test_R26_C7_an_event_counts_once_and_a_bad_message_is_left(manage: Callable[..., str]) -> None:
    order = manage("shell", "-v", "0", "--command", NEW_ORDER).split()[-1]
    missing = "00000000-0000-4000-8000-000000000000"
    messages = [
        {"event": "evt-1", "order": order, "amount": 100},
        {"event": "evt-2", "order": order, "amount": 100},
        {"event": "evt-1", "order": order, "amount": 100},
        {"order": order, "amount": 100},  # no event: no key
        {"event": "evt-3", "order": missing, "amount": 100},
        {"event": "evt-1", "order": order, "amount": 999},  # the same event says something else
    ]
    with LockedMoto() as server:
        with closing(client(server.url)) as sqs:
            patience = {"VisibilityTimeout": "600"}
            url = sqs.create_queue(QueueName="payments", Attributes=patience)["QueueUrl"]
            for body in [*map(json.dumps, messages), "not JSON"]:
                sqs.send_message(QueueUrl=url, MessageBody=body)

        words = ["--endpoint-url", server.url, "--wait", "0", "--once"]
        said = manage("consume_payments", url, *words)

    assert said == "3 done, 4 left in the queue\n"
    assert manage("shell", "-v", "0", "--command", PAID).split()[-1] == "200"
