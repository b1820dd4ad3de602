"""From Powertools: old and new processes at once, on the code of the guide."""

from __future__ import annotations

import itertools
import re
from contextlib import ExitStack

import boto3
import pytest

from django_idempotency.stores.dynamodb.items import Names
from django_idempotency.stores.dynamodb.schema import definition
from tests.pages import DOCS
from tests.proof.migrating.project import Project
from tests.services.dynamodb import ENVIRONMENT, LockedMoto
from tests.services.processes import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("migrating_powertools"),  # which shares processes
]

STORES = {
    "database": {},
    "DynamoDB": {
        "BACKEND": "django_idempotency.stores.dynamodb.DynamoDBStore",
        "OPTIONS": {"table_name": "idempotency", "timeout": 30},
    },
}
BUSY = "IdempotencyAlreadyInProgressError"
orders = (f"order-{number}" for number in itertools.count())


def event(order, amount=5):
    return {"user_id": "alice", "product_id": order, "amount": amount}


@pytest.fixture(scope="module", params=STORES)
def project(request, tmp_path_factory):
    with LockedMoto() as server:
        client = boto3.client(
            "dynamodb",
            endpoint_url=server.url,
            region_name="eu-west-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        for table, key in {"powertools": "id", "idempotency": "idempotencyKey"}.items():
            client.create_table(**definition(table, Names(key, None, "", {})))
        client.close()
        env = {
            **ENVIRONMENT,
            "AWS_ENDPOINT_URL_DYNAMODB": server.url,
            "AWS_LAMBDA_FUNCTION_NAME": "payments",
        }
        yield Project(
            "migrating-powertools",
            "powertools",
            tmp_path_factory.mktemp("shop"),
            env,
            IDEMPOTENCY={"default": STORES[request.param]},
        )


@pytest.fixture(scope="module")
def processes(project):
    """A process of each deployment, all at once."""
    with ExitStack() as stack:
        names = ("before", "both", "after")
        yield {name: stack.enter_context(project.start(name)) for name in names}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("before", ["before", "both"]),
        ("both", ["before", "both", "after"]),
        ("after", ["both", "after"]),
    ],
)
def test_what_one_deployment_has_done_the_others_know(project, processes, first, then):
    order = next(orders)

    done = processes[first].ask("deliver", event=event(order))
    again = [processes[name].ask("deliver", event=event(order)) for name in then]

    assert done["statusCode"] == 200
    assert (again, project.effects(order)) == ([done] * len(then), 1)


@pytest.mark.parametrize(("first", "then"), [("before", "both"), ("both", "before")])
def test_what_one_deployment_works_on_the_other_leaves(project, processes, tmp_path, first, then):
    order = next(orders)

    processes[first].tell("deliver", event=event(order), hold=str(tmp_path))
    wait_until((tmp_path / "begun").exists, seconds=30, what="the work has begun")
    meanwhile = processes[then].ask("deliver", event=event(order))
    (tmp_path / "go on").touch()
    done = processes[first].answer()

    assert (meanwhile, project.effects(order)) == (BUSY, 1)
    assert processes[then].ask("deliver", event=event(order)) == done


def test_another_amount_is_refused_by_all(processes):
    order = next(orders)

    processes["both"].ask("deliver", event=event(order))
    refused = [processes[name].ask("deliver", event=event(order, 9)) for name in processes]

    wanted = {"both": "IdempotencyValidationError", "after": "FingerprintMismatch"}
    assert refused == [wanted.get(name, wanted["both"]) for name in processes]


def test_process_with_both_that_was_killed_has_left_its_result_here(project, processes):
    order = next(orders)
    with project.start("both") as killed, pytest.raises(RuntimeError, match="ended with 9"):
        killed.ask("die", event=event(order), seconds=1)

    answers = []

    def answered():
        answers.append(processes["both"].ask("deliver", event=event(order)))
        return isinstance(answers[-1], dict)

    wait_until(answered, seconds=30, what="the time of the killed one is over")

    assert (answers[-1]["statusCode"], project.effects(order)) == (200, 1)


def test_process_with_another_name_finds_nothing_without_the_old_one(project, processes):
    guide = (DOCS / "howto/migrating-powertools.md").read_text()
    [named] = re.findall(r'`key_prefix="(.+)"`', guide)
    order, other = next(orders), next(orders)
    done = [processes["before"].ask("deliver", event=event(name)) for name in (order, other)]

    with project.start("both", AWS_LAMBDA_FUNCTION_NAME="worker") as worker:
        assert worker.ask("moved", event=event(order), key_prefix=named) == done[0]
        assert worker.ask("deliver", event=event(other)) != done[1]

    assert (project.effects(order), project.effects(other)) == (1, 2)
