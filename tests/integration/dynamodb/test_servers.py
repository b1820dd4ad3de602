"""The servers that the other tests rely on: what they have, and what they have not."""

from __future__ import annotations

import json
import re
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.services.dynamodb import FOLDER


def test_lock_file_names_no_host() -> None:
    text = (FOLDER / "package-lock.json").read_text()

    assert re.findall(r"\w+://", text) == []
    packages = json.loads(text)["packages"]
    assert all("integrity" in package for name, package in packages.items() if name)


@pytest.mark.parametrize("kind", ["moto", "dynalite"])
def test_failed_condition_brings_the_item_on_moto_alone(store: DynamoDBStore, kind: str) -> None:
    """So the store's own read is tested on dynalite."""
    native, key = store.table.client.native, {"idempotencyKey": {"S": str(uuid4())}}
    native.put_item(TableName=store.table.name, Item=key)
    with pytest.raises(ClientError) as raised:
        native.put_item(
            TableName=store.table.name,
            Item=key,
            ConditionExpression="attribute_not_exists(idempotencyKey)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )

    assert ("Item" in raised.value.response) is (kind == "moto")
