"""Creating the table that the DynamoDB store needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from django_idempotency.exceptions import StoreError
from django_idempotency.stores.dynamodb.items import Names
from django_idempotency.stores.dynamodb.store import DynamoDBStore
from django_idempotency.stores.dynamodb.table import TTL_IS_ON

__all__ = ["create", "definition", "options"]

#: Seconds that a table may take to become active, and then its backups to become available.
LONGEST_WAIT = 300.0
_POLL = 0.5
#: DynamoDB's errors about a table that it has just created.
_NOT_YET = frozenset(
    {
        "ContinuousBackupsUnavailableException",
        "ResourceInUseException",
        "ResourceNotFoundException",
        "TableNotFoundException",
    }
)

T = TypeVar("T")


def definition(name: str, names: Names) -> dict[str, Any]:
    """Return the table as ``CreateTable`` takes it: paid by request."""
    schema = names.key_schema()
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": key["AttributeName"], "AttributeType": "S"} for key in schema
        ],
        "KeySchema": schema,
    }


def create(store: DynamoDBStore, progress: Callable[[str], None] = lambda step: None) -> None:
    """
    Create the store's table, with TTL unless the store sweeps, and point-in-time recovery.

    Changes nothing that exists already, so it can be called again after an error. `progress` gets
    each next step, and each feature that the server, if it is not DynamoDB itself, lacks. Raises
    StoreError, also for a table with another primary key.
    """
    table = store.table
    progress(f"creating the table {table.name}")
    try:
        table.client.send("create_table", definition(table.name, table.names))
    except StoreError as error:
        if error.code != "ResourceInUseException":
            raise
        progress("it is there already")
    progress("waiting until it is active")
    described = _wait_for(partial(_active, store), f"The table {table.name} was not active")
    if problem := table.key_problem(described):
        raise StoreError(problem)
    for operation, specification in options(store).items():
        name = operation.removeprefix("update_").replace("_", " ")
        progress(f"turning on {name}")
        try:
            _wait_for(partial(_turn_on, store, operation, specification), f"There was no {name}")
        except StoreError as error:
            if error.code != "UnknownOperationException":
                raise
            progress(f"this server has no {name}")


def _active(store: DynamoDBStore) -> dict[str, Any]:
    """Return the description of the table once it is active."""
    described = store.table.described()
    if described["TableStatus"] == "DELETING":
        raise StoreError(f"The table {store.table.name} is being deleted; try again after that.")
    if described["TableStatus"] != "ACTIVE":
        raise StoreError("Its creation goes on.", code="ResourceInUseException")
    return described


def _turn_on(store: DynamoDBStore, operation: str, specification: dict[str, Any]) -> None:
    """Turn a feature on for the table; DynamoDB refuses TTL that is on, or is being turned on."""
    is_ttl = operation == "update_time_to_live"
    if not (is_ttl and _has_ttl(store)):
        try:
            store.table.client.send(operation, {"TableName": store.table.name, **specification})
        except StoreError:
            if not (is_ttl and _has_ttl(store)):  # it was, and that answer was lost
                raise


def _has_ttl(store: DynamoDBStore) -> bool:
    """Whether TTL is on; raise StoreError if it uses another attribute than the store's."""
    described = store.table.described_ttl()
    if problem := store.table.ttl_problem(described):
        raise StoreError(problem)
    return described["TimeToLiveStatus"] in TTL_IS_ON


def _wait_for(call: Callable[[], T], failure: str) -> T:
    """Repeat a call until it has an answer: parts of DynamoDB learn late of a new table."""
    deadline = time.monotonic() + LONGEST_WAIT
    while True:
        try:
            return call()
        except StoreError as error:
            if error.code not in _NOT_YET:
                raise
            if time.monotonic() > deadline:
                raise StoreError(f"{failure} within {LONGEST_WAIT:g} s.") from error
        time.sleep(_POLL)


def options(store: DynamoDBStore) -> dict[str, dict[str, Any]]:
    """Return the features to turn on after the creation of a table, by their calls."""
    recovery = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
    if not store.ttl:
        return {"update_continuous_backups": recovery}
    ttl = {"AttributeName": store.names.of["expiry"], "Enabled": True}
    return {
        "update_time_to_live": {"TimeToLiveSpecification": ttl},
        "update_continuous_backups": recovery,
    }
