"""The table that the DynamoDB store needs: creating it, and comparing a live one with it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from django_idempotency.exceptions import StoreError
from django_idempotency.stores.dynamodb.client import CallFailed

if TYPE_CHECKING:
    from django_idempotency.stores.dynamodb import DynamoDBStore
    from django_idempotency.stores.dynamodb.items import Names

__all__ = ["create", "definition", "key_schema", "options", "problems"]

#: Seconds that a table may take to become active, and then its backups to become available.
PATIENCE = 300.0
_POLL = 0.5
#: What DynamoDB answers about a table that it has just created.
_NOT_YET = frozenset(
    {
        "ContinuousBackupsUnavailableException",
        "ResourceInUseException",
        "ResourceNotFoundException",
        "TableNotFoundException",
    }
)
_TTL_IS_ON = ("ENABLED", "ENABLING")

T = TypeVar("T")


def key_schema(names: Names) -> list[dict[str, str]]:
    """Return the primary key of the table."""
    schema = [{"AttributeName": names.partition_key, "KeyType": "HASH"}]
    if names.sort_key is not None:
        schema.append({"AttributeName": names.sort_key, "KeyType": "RANGE"})
    return schema


def definition(name: str, names: Names) -> dict[str, Any]:
    """Return the table as ``CreateTable`` takes it: paid by request."""
    schema = key_schema(names)
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

    What is there already stays, so it can be called again after an error. `progress` is told what
    is done next, and what the server, if it is not DynamoDB itself, does not have. Raises
    StoreError, for a table with another primary key, too.
    """
    table = store.table
    progress(f"creating the table {table.name}")
    try:
        table.client.send("create_table", definition(table.name, table.names))
    except CallFailed as error:
        if error.code != "ResourceInUseException":
            raise
        progress("it is there already")
    progress("waiting until it is active")
    described = _patiently(lambda: _active(store), f"The table {table.name} was not active")
    found, wanted = described["KeySchema"], key_schema(table.names)
    if _keys(found) != _keys(wanted):
        raise StoreError(
            f"There is a table {table.name} with another primary key than the store uses: "
            f"{_keys(found)}, not {_keys(wanted)}."
        )
    for operation, specification in options(store).items():
        name = operation.removeprefix("update_").replace("_", " ")
        progress(f"turning on {name}")
        try:
            turn_on = functools.partial(_turn_on, store, operation, specification)
            _patiently(turn_on, f"There was no {name}")
        except CallFailed as error:
            if error.code != "UnknownOperationException":
                raise
            progress(f"this server has no {name}")


def _active(store: DynamoDBStore) -> dict[str, Any] | None:
    """Return the description of the table if it is active."""
    described = _described(store)
    if described["TableStatus"] == "DELETING":
        raise StoreError(f"The table {store.table.name} is being deleted; try again after that.")
    return described if described["TableStatus"] == "ACTIVE" else None


def _turn_on(store: DynamoDBStore, operation: str, specification: dict[str, Any]) -> bool:
    """Turn something on for the table; DynamoDB refuses TTL that is on, or is being turned on."""
    is_ttl = operation == "update_time_to_live"
    if not (is_ttl and _has_ttl(store)):
        try:
            store.table.client.send(operation, {"TableName": store.table.name, **specification})
        except CallFailed:
            if not (is_ttl and _has_ttl(store)):  # it was, and that answer was lost
                raise
    return True


def _has_ttl(store: DynamoDBStore) -> bool:
    """Whether TTL is on; raise StoreError if it goes by another attribute than the store's."""
    described, expiry = _described_ttl(store), store.names.of["expiry"]
    is_on = described["TimeToLiveStatus"] in _TTL_IS_ON
    if is_on and described.get("AttributeName") != expiry:
        raise StoreError(
            f"TTL of the table {store.table.name} goes by {described.get('AttributeName')!r}, and "
            f"the store's records expire by {expiry!r}."
        )
    return is_on


def _patiently(call: Callable[[], T | None], failure: str) -> T:
    """Call until there is an answer: DynamoDB's parts hear of a new table one after the other."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            answer = call()
        except CallFailed as error:
            if error.code not in _NOT_YET:
                raise
        else:
            if answer is not None:
                return answer
        if time.monotonic() > deadline:
            raise StoreError(f"{failure} within {PATIENCE:g} s.")
        time.sleep(_POLL)


def options(store: DynamoDBStore) -> dict[str, dict[str, Any]]:
    """Return what is turned on once a table is there, by the call that does it."""
    recovery = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
    if not store.ttl:
        return {"update_continuous_backups": recovery}
    ttl = {"AttributeName": store.names.of["expiry"], "Enabled": True}
    return {
        "update_time_to_live": {"TimeToLiveSpecification": ttl},
        "update_continuous_backups": recovery,
    }


def problems(store: DynamoDBStore) -> list[Any]:
    """Return what keeps the store's table from doing its work, as Django's check messages."""
    return list(_problems(store))


def _problems(store: DynamoDBStore) -> Iterator[Any]:
    from django.core.checks import Error, Warning

    table = store.table
    yield from _overflow_problems(store)
    try:
        described = _described(store)
        ttl = _described_ttl(store)
    except StoreError as error:
        yield Error(
            f"The DynamoDB store cannot look at its table {table.name!r}: {error}",
            hint=_remedy(error),
            id="django_idempotency.E020",
        )
        return
    if _keys(described["KeySchema"]) != _keys(key_schema(table.names)):
        yield Error(
            f"The primary key of the table {table.name!r} is not the one that the store uses: "
            f"{_keys(described['KeySchema'])}, not {_keys(key_schema(table.names))}.",
            hint="Set OPTIONS['partition_key'] and ['sort_key'] to what the table has.",
            id="django_idempotency.E021",
        )
    enabled = ttl["TimeToLiveStatus"] in _TTL_IS_ON
    expiry = table.names.of["expiry"]
    if store.ttl and not enabled:
        yield Warning(
            f"TTL is off for the table {table.name!r}: expired records are never deleted.",
            hint=f"Turn it on for the attribute {expiry!r}, or set OPTIONS['ttl'] to False and "
            f"run manage.py idempotency_sweep.",
            id="django_idempotency.W020",
        )
    elif enabled and ttl.get("AttributeName") != expiry:
        yield Error(
            f"TTL of the table {table.name!r} goes by {ttl.get('AttributeName')!r}, and the "
            f"store's records expire by {expiry!r}.",
            hint="Change the table's TTL, or name the attribute in OPTIONS['attributes'].",
            id="django_idempotency.E022",
        )
    if described.get("Replicas") and described.get("MultiRegionConsistency") != "STRONG":
        regions = ", ".join(replica["RegionName"] for replica in described["Replicas"])
        yield Warning(
            f"The table {table.name!r} is replicated to other Regions ({regions}), and the last "
            f"writer wins between them: a key that is used in two Regions can run twice.",
            hint="Send each key to one Region only, or use multi-Region strong consistency.",
            id="django_idempotency.W021",
        )


def _remedy(error: StoreError) -> str:
    """Return what to do about a table that cannot be looked at."""
    cause = error.code if isinstance(error, CallFailed) else type(error.__cause__).__name__
    match cause:
        case "ResourceNotFoundException":
            return (
                "Create it with manage.py idempotency_table --create, or correct "
                "OPTIONS['table_name'] and ['region_name']."
            )
        case "AccessDeniedException":
            return "Allow dynamodb:DescribeTable and dynamodb:DescribeTimeToLive."
        case "NoRegionError":
            return "Set OPTIONS['region_name'], or AWS_DEFAULT_REGION."
        case (
            "ExpiredTokenException"
            | "InvalidSignatureException"
            | "NoCredentialsError"
            | "PartialCredentialsError"
            | "UnrecognizedClientException"
        ):
            return "Give this process credentials of AWS: a role, a profile or the environment."
    return "Look whether the endpoint can be reached: OPTIONS['endpoint_url'] and the network."


def _overflow_problems(store: DynamoDBStore) -> Iterator[Any]:
    from django.core.checks import Error, Warning
    from django.core.files.storage import InvalidStorageError, storages

    if store.overflow is None:
        return
    try:
        storages[store.overflow.alias]
    except InvalidStorageError as error:
        yield Error(
            f"The DynamoDB store keeps large results in the storage {store.overflow.alias!r}, "
            f"which cannot be used: {error}",
            hint="Set OPTIONS['overflow_storage'] to an alias of STORAGES.",
            id="django_idempotency.E023",
        )
        return
    try:
        left = store.overflow.probe()
    except StoreError as failure:
        yield Error(
            f"The DynamoDB store cannot keep large results in the storage "
            f"{store.overflow.alias!r}: {failure}",
            hint="Correct the storage's OPTIONS, or the rights of this process. Until then large "
            "results are not kept, and retries get result_unavailable.",
            id="django_idempotency.E024",
        )
        return
    if left is not None:
        yield Warning(
            f"The check of the storage {store.overflow.alias!r} has left an object there: {left}",
            hint="Allow this process to delete objects under idempotency/check/, or leave them to "
            "the bucket's life cycle.",
            id="django_idempotency.W022",
        )


def _described(store: DynamoDBStore) -> dict[str, Any]:
    table: dict[str, Any] = store.table.client.send(
        "describe_table", {"TableName": store.table.name}
    )["Table"]
    return table


def _described_ttl(store: DynamoDBStore) -> dict[str, Any]:
    ttl: dict[str, Any] = store.table.client.send(
        "describe_time_to_live", {"TableName": store.table.name}
    )["TimeToLiveDescription"]
    return ttl


def _keys(schema: list[dict[str, str]]) -> str:
    """Return a primary key in words: the partition key, and the sort key behind it."""
    named = {key["KeyType"]: key["AttributeName"] for key in schema}
    return " + ".join(named[kind] for kind in ("HASH", "RANGE") if kind in named)
