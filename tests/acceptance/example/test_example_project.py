"""The example: its own tests, checks, commands and consumer, in processes with its settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from contextlib import closing

import boto3
import pytest

from tests.services.dynamodb import ENVIRONMENT, LockedMoto
from tests.services.processes import ROOT

pytestmark = pytest.mark.processes


@pytest.fixture
def manage(tmp_path):
    """`manage("check", EXAMPLE_LEASE="3")`: a command of the example, on a database of its own."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("EXAMPLE_", "DJANGO_"))}
    own = {**outside, **ENVIRONMENT, "EXAMPLE_DATABASE": str(tmp_path / "shop.sqlite3")}

    def run(*arguments, **environ):
        return subprocess.run(
            [sys.executable, "-m", "example_project.manage", *arguments],
            cwd=ROOT,
            env={**own, **environ},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run


@pytest.fixture
def script(manage):
    """`script(code)`: what code prints that calls several commands in one process."""
    head = "from django.core.management import call_command as call\n"

    def run(code, **environ):
        return manage("shell", "-v", "0", "--command", head + code, **environ)

    return run


def test_the_shops_own_tests_pass(manage):
    """In the mode of the settings; tests/proof has the others."""
    assert_passes(manage, "", "0")


def assert_passes(manage, transaction, atomic_requests):
    mode = {"EXAMPLE_TRANSACTION": transaction} if transaction else {}
    result = manage("test", "example_project", EXAMPLE_ATOMIC_REQUESTS=atomic_requests, **mode)
    assert result.returncode == 0, result.stderr
    assert "Ran 0 tests" not in result.stderr


COMMANDS = """
call("check", fail_level="WARNING")
call("makemigrations", check_changes=True, dry_run=True)
call("spectacular", validate=True, fail_on_warn=True)
call("migrate", verbosity=0)
for _ in range(2):
    print("SEED")
    call("seed")
"""


def test_checks_migrations_schema_and_seed_have_nothing_to_say(script):
    result = script(COMMANDS)
    assert result.returncode == 0, result.stdout + result.stderr

    before, first, again = result.stdout.split("SEED\n")
    assert "name: Idempotency-Key" in before
    assert "there:" not in first
    assert "added:" not in again
    assert first.replace("added:", "there:") == again


def test_known_passwords_stay_out_of_production_which_needs_a_secret(manage, script):
    seed = 'call("migrate", verbosity=0)\ncall("seed")'
    seeded = script(seed, EXAMPLE_DEBUG="0", EXAMPLE_SECRET_KEY="secret")
    assert (seeded.returncode, "Known passwords" in seeded.stderr) == (1, True)

    checked = manage("check", EXAMPLE_DEBUG="0")
    assert (checked.returncode, "EXAMPLE_SECRET_KEY" in checked.stderr) == (1, True)


CONSUME = """
from example_project.shop.models import Order
call("migrate", verbosity=0)
order = Order.objects.create(pk={order!r}, product="tea", quantity=1, total=500)
call("consume_payments", {queue!r}, "--endpoint-url", {url!r}, "--wait", "0", "--once")
order.refresh_from_db()
print(order.paid)
"""


def test_R26_C7_an_event_of_a_queue_counts_once_and_a_bad_message_is_left(script):
    order, missing = str(uuid.uuid4()), str(uuid.uuid4())
    messages = [
        {"event": "evt-1", "order": order, "amount": 100},
        {"event": "evt-2", "order": order, "amount": 100},
        {"event": "evt-1", "order": order, "amount": 100},
        {"order": order, "amount": 100},  # no event: no key
        {"event": "evt-3", "order": missing, "amount": 100},
        {"event": "evt-1", "order": order, "amount": 999},  # the same event says something else
    ]
    credentials = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    with LockedMoto() as server:
        given = {"region_name": "eu-west-1", "endpoint_url": server.url, **credentials}
        with closing(boto3.client("sqs", **given)) as sqs:
            patience = {"VisibilityTimeout": "600"}
            queue = sqs.create_queue(QueueName="payments", Attributes=patience)["QueueUrl"]
            for body in [*map(json.dumps, messages), "not JSON"]:
                sqs.send_message(QueueUrl=queue, MessageBody=body)

        result = script(CONSUME.format(order=order, queue=queue, url=server.url))

    assert result.stdout == "3 done, 4 left in the queue\n200\n", result.stderr
