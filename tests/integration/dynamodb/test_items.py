"""Records as items: names of attributes, times, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency.conf import InvalidStore, store_for
from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores import dynamodb_expressions
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb_items import ATTRIBUTES, Names, seconds, whole_seconds
from tests.integration.dynamodb.claims import FINGERPRINT, HOUR, asked, found, lost, record_id, won
from tests.integration.dynamodb.conftest import MakeStore
from tests.meetings import MEANS, READERS, what_it_means

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)

moments = st.datetimes(
    min_value=datetime(2000, 1, 1),
    max_value=datetime(2200, 1, 1),
    timezones=st.just(timezone.utc),
)


@given(moments)
def test_moment_comes_back_to_the_microsecond(moment: datetime) -> None:
    text = seconds(moment)["N"]

    assert datetime.fromtimestamp(float(text), timezone.utc) == moment


@given(moments)
def test_expiry_is_the_next_whole_second(moment: datetime) -> None:
    rounded = whole_seconds(moment)

    assert rounded.microsecond == 0
    assert timedelta(0) <= rounded - moment < timedelta(seconds=1)


def raw(store: DynamoDBStore) -> dict[str, Any]:
    item = store.table.item(record_id())
    assert item is not None
    return item


def test_completed_item_has_the_attributes_that_the_documentation_names(
    store: DynamoDBStore,
) -> None:
    store.complete(won(store.claim(asked(operation="pay"))), b"done", retention=HOUR)

    item = raw(store)

    assert set(item) == {
        "idempotencyKey",
        "status",
        "epoch",
        "token",
        "fingerprint",
        "expiry",
        "scope",
        "key",
        "operation",
        "attempts",
        "createdAt",
        "updatedAt",
        "responsePayload",
    }
    assert item["idempotencyKey"] == {"S": str(record_id())}
    assert item["status"] == {"S": "COMPLETED"}
    assert item["responsePayload"] == {"B": b"done"}


def test_expiry_is_what_TTL_takes(store: DynamoDBStore) -> None:
    store.complete(won(store.claim(asked())), b"done", retention=HOUR)

    assert raw(store)["expiry"]["N"].isdigit()


def test_R71_record_without_an_expiry_has_no_such_attribute(store: DynamoDBStore) -> None:
    won(store.claim(asked(on_stale="refuse")))

    assert "expiry" not in raw(store)
    assert found(store).expires_at is None


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
        ({"attributes": {"statsu": "s"}}, "Did you mean 'status'?"),
        ({"attributes": {"status": "expiry"}}, "one name: expiry"),
        ({"attributes": {"status": "idempotencyKey"}}, "one name: idempotencyKey"),
        ({"partition_key": "id", "sort_key": "id"}, "one name: id"),
        ({}, "table_name"),
        ({"table_name": "t", "nonesuch": 1}, "nonesuch"),
    ],
    ids=str,
)
def test_bad_options_are_an_invalid_store(
    settings: Any, options: dict[str, Any], message: str
) -> None:
    backend = "django_idempotency.stores.dynamodb.DynamoDBStore"
    given = options if message in ("table_name", "nonesuch") else {"table_name": "t", **options}
    settings.IDEMPOTENCY = {"default": {"BACKEND": backend, "OPTIONS": given}}

    with pytest.raises(InvalidStore, match=message.replace("?", r"\?")):
        store_for("default")


@pytest.mark.parametrize(
    "damage",
    ["status", "epoch", "token", "scope", "createdAt"],
)
def test_damaged_item_is_an_error(store: DynamoDBStore, damage: str) -> None:
    won(store.claim(asked()))
    item = {**raw(store), damage: {"S": "damaged"}}
    if damage == "scope":
        del item[damage]
    store.table.client.send("put_item", {"TableName": store.table.name, "Item": item})

    with pytest.raises(StoreError, match="damaged"):
        store.get(record_id())


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("epoch", {"N": "1.5"}),
        ("createdAt", {"N": "1E+30"}),
        ("expiry", {"N": "1E+18"}),
        ("lockExpiry", {"N": "-1E+18"}),
        ("scope", {"NULL": True}),
        ("error", {"M": {}}),
        ("fingerprint", {"BOOL": True}),
        ("token", {"S": "\0"}),
        ("attempts", {"L": []}),
    ],
    ids=str,
)
def test_R95_forged_attribute_is_an_error_or_is_not_there(
    store: DynamoDBStore, attribute: str, value: dict[str, Any]
) -> None:
    won(store.claim(asked()))
    item = {**raw(store), attribute: value}

    if attribute == "error":
        assert store.names.record(item, NOW, timedelta(0)).error == ""
        return
    with pytest.raises(StoreError, match="damaged"):
        store.names.record(item, NOW, timedelta(0))


@pytest.mark.parametrize("forged", [{}, {"responsePayload": {"S": "text"}}], ids=["gone", "text"])
def test_R95_completed_item_without_a_result_is_an_error(
    store: DynamoDBStore, forged: dict[str, Any]
) -> None:
    store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    item = {**raw(store)}
    del item["responsePayload"]
    store.table.client.send("put_item", {"TableName": store.table.name, "Item": {**item, **forged}})

    for look in (lambda: store.claim(asked()), lambda: store.get(record_id())):
        with pytest.raises(StoreError, match="damaged"):
            look()


def test_R95_claim_that_wins_by_a_forged_epoch_is_an_error(store: DynamoDBStore) -> None:
    lease = won(store.claim(asked()))
    store.release(lease)
    item = {**raw(store), "epoch": {"N": "1.5"}}
    store.table.client.send("put_item", {"TableName": store.table.name, "Item": item})

    with pytest.raises(StoreError):
        store.claim(asked())


def test_every_statement_names_the_attributes_of_its_table() -> None:
    """An expression attribute name or value that is not used would be refused by DynamoDB."""
    names = Names("idempotencyKey", None, "", {})
    for statement in dynamodb_expressions.__all__:
        if not statement.isupper():
            continue
        prepared = dynamodb_expressions.prepare(
            getattr(dynamodb_expressions, statement), names.placeholders
        )
        text = prepared.get("UpdateExpression", "") + prepared["ConditionExpression"]
        used = [*prepared["ExpressionAttributeNames"], *prepared["ExpressionAttributeValues"]]
        assert all(name in text for name in used)
        assert len(text) < 4096  # DynamoDB's limit


class TestNoFingerprint:
    """Requests that have none, and records that have forgotten theirs."""

    def test_one_without_is_recorded_without(self, store: DynamoDBStore) -> None:
        won(store.claim(asked(fingerprints=())))

        assert found(store).fingerprint is None

    def test_failed_record_without_one_is_claimed_by_any(self, store: DynamoDBStore) -> None:
        store.fail(won(store.claim(asked(fingerprints=()))), "boom")

        won(store.claim(asked()))

        assert found(store).fingerprint == FINGERPRINT

    def test_R70_failed_record_with_one_is_not_claimed_without(self, store: DynamoDBStore) -> None:
        store.fail(won(store.claim(asked())), "boom")

        assert lost(store.claim(asked(fingerprints=()))).state is State.FAILED

    def test_failed_record_without_one_is_claimed_without(self, store: DynamoDBStore) -> None:
        store.fail(won(store.claim(asked(fingerprints=()))), "boom")

        won(store.claim(asked(fingerprints=())))


@pytest.mark.parametrize("reader", READERS)
def test_I4_record_of_a_call_means_the_same_to_a_block_and_to_coroutines(
    make_store: MakeStore, reader: str
) -> None:
    assert what_it_means(Engine(make_store(clock_skew=0)), reader) == MEANS
