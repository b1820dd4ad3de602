"""Records as items: names of attributes, times, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency.conf import InvalidStore, store_for
from django_idempotency.exceptions import StoreError
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb import expressions as dynamodb_expressions
from django_idempotency.stores.dynamodb.items import ATTRIBUTES, Names, seconds, whole_seconds
from tests.integration.dynamodb.claims import HOUR, asked, found, record_id, won
from tests.integration.dynamodb.conftest import BACKEND, MakeStore

moments = st.datetimes(
    min_value=datetime(2000, 1, 1),
    max_value=datetime(2200, 1, 1),
    timezones=st.just(timezone.utc),
)


@given(moments)
def test_moment_comes_back_and_an_expiry_is_the_next_whole_second(moment: datetime) -> None:
    rounded = whole_seconds(moment)

    assert datetime.fromtimestamp(float(seconds(moment)["N"]), timezone.utc) == moment
    assert seconds(rounded)["N"].isdigit()  # what TTL takes
    assert timedelta(0) <= rounded - moment < timedelta(seconds=1)


def raw(store: DynamoDBStore) -> dict[str, Any]:
    item = store.table.item(record_id())
    assert item is not None
    return item


def put(store: DynamoDBStore, item: dict[str, Any]) -> None:
    store.table.client.send("put_item", {"TableName": store.table.name, "Item": item})


def test_completed_item_has_the_attributes_that_the_documentation_names(
    store: DynamoDBStore,
) -> None:
    store.complete(won(store.claim(asked(operation="pay"))), b"done", retention=HOUR)

    item = raw(store)

    absent = {"lockExpiry", "overflowName", "overflowHash", "error"}
    assert set(item) == {"idempotencyKey", *ATTRIBUTES} - absent
    assert item["idempotencyKey"] == {"S": str(record_id())}
    assert item["status"] == {"S": "COMPLETED"}
    assert item["responsePayload"] == {"B": b"done"}
    assert item["expiry"]["N"].isdigit()


def test_R71_record_without_an_expiry_has_no_such_attribute(store: DynamoDBStore) -> None:
    won(store.claim(asked(on_stale="refuse")))

    assert "expiry" not in raw(store)


def test_every_attribute_can_have_another_name(make_store: MakeStore) -> None:
    names = {name: f"x_{name}" for name in ATTRIBUTES}
    store = make_store(partition_key="x_pk", attributes=names)

    store.fail(won(store.claim(asked())), "boom")
    store.complete(won(store.claim(asked())), b"done", retention=HOUR)

    assert all(name.startswith("x_") for name in raw(store))
    assert found(store).result == b"done"


def test_records_can_share_one_partition(make_store: MakeStore) -> None:
    store = make_store(partition_key="PK", sort_key="SK", static_partition_key="IDEMPOTENCY")

    won(store.claim(asked()))

    item = raw(store)
    assert (item["PK"], item["SK"]) == ({"S": "IDEMPOTENCY"}, {"S": str(record_id())})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table_name": "t", "attributes": {"statsu": "s"}}, r"Did you mean 'status'\?"),
        ({"table_name": "t", "attributes": {"status": "expiry"}}, "one name: expiry"),
        ({"table_name": "t", "partition_key": "id", "sort_key": "id"}, "one name: id"),
        ({}, "table_name"),
        ({"table_name": "t", "nonesuch": 1}, "nonesuch"),
    ],
    ids=str,
)
def test_bad_options_are_an_invalid_store(
    settings: Any, options: dict[str, Any], message: str
) -> None:
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}

    with pytest.raises(InvalidStore, match=message):
        store_for("default")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("status", {"S": "damaged"}),
        ("epoch", {"S": "1"}),
        ("epoch", {"N": "1.5"}),
        ("createdAt", {"N": "1E+30"}),
        ("expiry", {"N": "1E+18"}),
        ("lockExpiry", {"N": "-1E+18"}),
        ("scope", {"NULL": True}),
        ("fingerprint", {"BOOL": True}),
        ("token", {"S": "\0"}),
        ("attempts", {"L": []}),
        ("responsePayload", {"S": "text"}),
        ("responsePayload", {}),
    ],
    ids=str,
)
def test_R95_forged_attribute_is_an_error(
    store: DynamoDBStore, attribute: str, value: dict[str, Any]
) -> None:
    lease = won(store.claim(asked()))
    if attribute == "responsePayload":
        store.complete(lease, b"result", retention=HOUR)
    item = {**raw(store), attribute: value}
    if not value:
        del item[attribute]
    store.table.item = lambda record_id: item  # type: ignore[method-assign]

    with pytest.raises(StoreError, match="damaged"):
        store.get(record_id())


def test_R95_claim_that_meets_a_completed_item_without_a_result_is_an_error(
    store: DynamoDBStore,
) -> None:
    store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    item = raw(store)
    del item["responsePayload"]
    put(store, item)

    with pytest.raises(StoreError, match="damaged"):
        store.claim(asked())


def test_R95_claim_that_wins_by_a_forged_epoch_is_an_error(store: DynamoDBStore) -> None:
    store.release(won(store.claim(asked())))
    put(store, {**raw(store), "epoch": {"N": "1.5"}})

    with pytest.raises(StoreError):
        store.claim(asked())


def test_every_statement_names_the_attributes_of_its_table() -> None:
    """An expression attribute name or value that is not used would be refused by DynamoDB."""
    names = Names("idempotencyKey", None, "", {})
    for statement in filter(str.isupper, dynamodb_expressions.__all__):
        prepared = dynamodb_expressions.prepare(
            getattr(dynamodb_expressions, statement), names.placeholders
        )
        text = prepared.get("UpdateExpression", "") + prepared["ConditionExpression"]
        used = [*prepared["ExpressionAttributeNames"], *prepared["ExpressionAttributeValues"]]
        assert all(name in text for name in used)
        assert len(text) < 4096  # DynamoDB's limit


@pytest.mark.parametrize("second", [(), (b"2" * 32,)], ids=["none", "any"])
def test_failed_record_without_a_fingerprint_is_claimed_with(
    store: DynamoDBStore, second: tuple[bytes, ...]
) -> None:
    store.fail(won(store.claim(asked(fingerprints=()))), "boom")

    won(store.claim(asked(fingerprints=second)))

    assert found(store).fingerprint == (second[0] if second else None)
