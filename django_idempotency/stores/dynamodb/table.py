"""The calls on one table: conditional writes by the name of their statement, and reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from uuid import UUID

from django_idempotency.stores.dynamodb import expressions
from django_idempotency.stores.dynamodb.client import Client
from django_idempotency.stores.dynamodb.items import Item, Names, string

R = TypeVar("R")
T = TypeVar("T")

#: Writes that are sent at a time, where there are many: DynamoDB has no conditional batch.
SIDE_BY_SIDE = 8
#: Items that one BatchGetItem may ask for.
BATCH = 100
#: The states of TTL in which a table deletes, or is about to delete, expired items.
TTL_IS_ON = ("ENABLED", "ENABLING")


class Table:
    """A table, whose attributes have the given names."""

    def __init__(self, name: str, names: Names, client: Client) -> None:
        self.name = name
        self.names = names
        self.client = client
        self._statements = {
            name: expressions.prepare(statement, names.placeholders)
            for name, statement in expressions.STATEMENTS.items()
        }

    def update(
        self, statement: str, record_id: UUID, values: Mapping[str, Any], **more: Any
    ) -> dict[str, Any]:
        """Send an update, and return its answer; raise ConditionFailed and StoreError."""
        parameters = self.parameters(statement, record_id, values)
        return self.client.send("update_item", {**parameters, **more})

    def put(
        self, statement: str, record_id: UUID, item: Mapping[str, Any], values: Mapping[str, Any]
    ) -> None:
        """Write an item, its values named as in expressions; raise ConditionFailed, StoreError."""
        parameters = self.parameters(statement, record_id, values)
        attributes = {self.names.of[name[1:]]: value for name, value in item.items()}
        parameters["Item"] = {**parameters.pop("Key"), **attributes}
        self.client.send("put_item", parameters)

    def delete(self, statement: str, record_id: UUID, values: Mapping[str, Any]) -> None:
        """Delete an item; raise ConditionFailed and StoreError."""
        self.client.send("delete_item", self.parameters(statement, record_id, values))

    def parameters(
        self, statement: str, record_id: UUID, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the parameters of a conditional write for the low-level client."""
        prepared = self._statements[statement]
        constants = prepared["ExpressionAttributeValues"]
        return {
            "TableName": self.name,
            "Key": self.names.key(record_id),
            **prepared,
            "ExpressionAttributeValues": {**constants, **values},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def item(self, record_id: UUID) -> Item | None:
        """Return the current item: for `get`, and if a failed condition came without its item."""
        key = self.names.key(record_id)
        parameters = {"TableName": self.name, "Key": key, "ConsistentRead": True}
        item: Item | None = self.client.send("get_item", parameters).get("Item")
        return item

    def items(self, record_ids: Iterable[UUID]) -> Iterator[Item]:
        """Give the current items that there are, in no order."""
        wanted = [self.names.key(record_id) for record_id in record_ids]
        while wanted:
            asked, wanted = wanted[:BATCH], wanted[BATCH:]
            request = {self.name: {"Keys": asked, "ConsistentRead": True}}
            answer = self.client.send("batch_get_item", {"RequestItems": request})
            yield from answer["Responses"].get(self.name, [])
            # What was too much for one answer, or for the table's capacity, is asked for again.
            wanted += answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])

    def read(self, start: Item | None, limit: int) -> tuple[list[Item], Item | None]:
        """Return at most `limit` items and the key to go on from, None at the end."""
        parameters: dict[str, Any] = {"TableName": self.name, "Limit": limit}
        if start is not None:
            parameters["ExclusiveStartKey"] = start
        if self.names.sort_key is None:
            answer = self.client.send("scan", parameters)
        else:
            parameters["KeyConditionExpression"] = "#partition = :partition"
            parameters["ExpressionAttributeNames"] = {"#partition": self.names.partition_key}
            parameters["ExpressionAttributeValues"] = {":partition": string(self.names.static)}
            answer = self.client.send("query", parameters)
        return answer["Items"], answer.get("LastEvaluatedKey")

    def described(self) -> dict[str, Any]:
        """Return the server's description of the table."""
        table: dict[str, Any] = self.client.send("describe_table", {"TableName": self.name})
        described: dict[str, Any] = table["Table"]
        return described

    def described_ttl(self) -> dict[str, Any]:
        """Return the server's description of the table's TTL."""
        answer = self.client.send("describe_time_to_live", {"TableName": self.name})
        described: dict[str, Any] = answer["TimeToLiveDescription"]
        return described

    def key_problem(self, described: dict[str, Any]) -> str | None:
        """Return what is wrong with the primary key of a described table; None if it fits."""
        found, wanted = _in_words(described["KeySchema"]), _in_words(self.names.key_schema())
        if found == wanted:
            return None
        return (
            f"The primary key of the table {self.name!r} is not the one that the store uses: "
            f"{found}, not {wanted}."
        )

    def ttl_problem(self, described: dict[str, Any]) -> str | None:
        """Return what is wrong with a described TTL that is on; None if it fits, or is off."""
        found, wanted = described.get("AttributeName"), self.names.of["expiry"]
        if found == wanted or described["TimeToLiveStatus"] not in TTL_IS_ON:
            return None
        return (
            f"TTL of the table {self.name!r} goes by {found!r}, and the store's records expire by "
            f"{wanted!r}."
        )


def _in_words(schema: list[dict[str, str]]) -> str:
    """Return a primary key in words: the partition key, and the sort key behind it."""
    named = {key["KeyType"]: key["AttributeName"] for key in schema}
    return " + ".join(named[kind] for kind in ("HASH", "RANGE") if kind in named)


def side_by_side(call: Callable[[T], R], arguments: Collection[T]) -> list[R]:
    """Call for each argument, several at a time where there are several; results in order."""
    if len(arguments) < 2:
        return [call(argument) for argument in arguments]
    with ThreadPoolExecutor(min(SIDE_BY_SIDE, len(arguments))) as pool:
        return list(pool.map(call, arguments))
