"""The worker of a function that is guarded on DynamoDB; ours, or by Powertools for AWS Lambda."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from botocore.httpsession import URLLib3Session

from benchmarks.worker import count_calls, first_and_replay, race

URL = os.environ["BENCHMARK_DYNAMODB"]

#: How often the work ran for each order.
effects: Counter[str] = Counter()
_mutex = threading.Lock()


def work(order: str) -> dict[str, Any]:
    with _mutex:
        effects[order] += 1
    return {"id": 1, "reference": "order-1234", "amount": 1250}


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Make a table and the function, and return the commands."""
    charge = {"ours": _ours, "powertools": _powertools}[variant](f"bench-{uuid.uuid4()}")
    sent = [0]
    send = URLLib3Session.send

    def counted(self: Any, request: Any) -> Any:
        sent[0] += 1
        return send(self, request)

    def calls() -> dict[str, dict[str, int]]:
        """Count requests on the wire, and calls of functions, of a first call and a duplicate."""
        found, key = {}, str(uuid.uuid4())
        URLLib3Session.send = counted
        for part in ("first", "replay"):
            sent[0] = 0
            python = count_calls(lambda: charge(key))["all"]
            found[part] = {"wire": sent[0], "python": python}
        URLLib3Session.send = send
        return found

    def race_on_one_key(times: int) -> list[int]:
        """Race 8 threads on one key, so often; how often the work ran each time."""
        orders = [str(uuid.uuid4()) for _ in range(times)]
        for order in orders:
            race(lambda order=order: charge(order))  # type: ignore[misc]
        return [effects[order] for order in orders]

    return {**first_and_replay(charge), "calls": calls, "race": race_on_one_key}


def _ours(table: str) -> Callable[[str], Any]:
    import django
    from django.conf import settings

    backend = "django_idempotency.stores.dynamodb.DynamoDBStore"
    options = {"table_name": table, "endpoint_url": URL, "timeout": 30}
    settings.configure(
        IDEMPOTENCY={"default": {"BACKEND": backend, "OPTIONS": options}},
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()
    import django_idempotency as idempotency
    from django_idempotency.stores.dynamodb.items import Names
    from django_idempotency.stores.dynamodb.schema import definition

    _create(definition(table, Names("idempotencyKey", None, "", {})))
    charge = idempotency.idempotent_function(key="order", scope="bench")(work)
    return lambda order: charge(order=order)


def _powertools(table: str) -> Callable[[str], Any]:
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )

    class Context:
        """What Lambda tells: time is left."""

        def get_remaining_time_in_millis(self) -> int:
            return 60_000

    _create(
        {
            "TableName": table,
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
    )
    config = IdempotencyConfig()
    config.register_lambda_context(Context())
    charge = idempotent_function(
        work,
        data_keyword_argument="order",
        persistence_store=DynamoDBPersistenceLayer(table_name=table, boto3_client=_client()),
        config=config,
    )
    return lambda order: charge(order=order)


def _client() -> Any:
    import boto3

    return boto3.client("dynamodb", endpoint_url=URL)


def _create(definition: dict[str, Any]) -> None:
    client = _client()
    client.create_table(**definition)
    client.get_waiter("table_exists").wait(
        TableName=definition["TableName"], WaiterConfig={"Delay": 1}
    )
