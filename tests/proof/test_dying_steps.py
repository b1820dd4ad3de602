"""A process dies in, between and after steps and calls, on each store (P1 to P8)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from django.test import override_settings

from django_idempotency.conf import store_for
from django_idempotency.stores.dynamodb import schema
from tests.acceptance.processes.checkout import CASES, MORE_CASES, Case
from tests.acceptance.processes.test_steps import dies_and_goes_on, lapse, record_of
from tests.services import or_skip
from tests.services.databases import environment_for_children
from tests.services.dynamodb import ENVIRONMENT, dynamodb_url
from tests.services.forks import Forks
from tests.services.redis import RedisServer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "mariadb", "sqlite"),
]


@pytest.fixture(scope="module")
def forks(django_db_setup: None) -> Iterator[Forks]:
    with Forks({**environment_for_children(), **ENVIRONMENT}) as forks:
        yield forks


@pytest.mark.parametrize("case", MORE_CASES, ids=str)
def test_P1_to_P8_what_a_database_has_noted_is_not_done_again(
    forks: Forks, settings: Any, case: Case
) -> None:
    settings.IDEMPOTENCY = {"default": {}}
    dies_and_goes_on(forks, case, lapse)


#: The cases whose notes are in no transaction.
WITHOUT = [case for case in (*CASES, *MORE_CASES) if not case.point.endswith("_commit")]


@pytest.fixture(scope="module", params=["redis", "dynamodb"])
def lapse_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """Be under the settings of a store that is up; ends the lease on a key."""
    with ExitStack() as stack:
        if request.param == "redis":
            server = or_skip(lambda: stack.enter_context(RedisServer()))
            client = stack.enter_context(server.client())
            backend, options = "redis.RedisStore", {"url": server.url, "prefix": "steps:"}
        else:
            stack.enter_context(mock.patch.dict(os.environ, ENVIRONMENT))
            url = or_skip(lambda: stack.enter_context(dynamodb_url()))
            backend = "dynamodb.DynamoDBStore"
            options = {"table_name": "steps", "endpoint_url": url, "clock_skew": 0.0}

        def lapse_on_redis(key: str) -> None:
            client.hset(f"steps:{record_of(key).record_id}", "lease_until", "1")

        def lapse_on_dynamodb(key: str) -> None:
            table = store_for().table
            item = {**table.item(record_of(key).record_id), "lockExpiry": {"N": "1"}}
            table.client.send("put_item", {"TableName": table.name, "Item": item})

        alias = {"BACKEND": f"django_idempotency.stores.{backend}", "OPTIONS": options}
        with override_settings(IDEMPOTENCY={"default": alias}):
            if request.param == "dynamodb":
                schema.create(store_for())
            yield lapse_on_redis if request.param == "redis" else lapse_on_dynamodb


@pytest.mark.leg("postgres18")
@pytest.mark.parametrize("case", WITHOUT, ids=str)
def test_P1_to_P8_what_was_noted_is_not_done_again(
    forks: Forks, lapse_of: Callable[[str], None], case: Case
) -> None:
    case = replace(case, key=f"key-{uuid4().hex}")
    dies_and_goes_on(forks, case, lambda: lapse_of(case.key))
