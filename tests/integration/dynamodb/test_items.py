"""Records as items: names of attributes, times, what is refused, and reading them in pages."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone

import hypothesis
import pytest
from hypothesis import strategies as st

from django_idempotency.conf import InvalidStore, store_for
from django_idempotency.exceptions import StoreError
from django_idempotency.records import Filters, State
from django_idempotency.stores.dynamodb import expressions
from django_idempotency.stores.dynamodb.items import ATTRIBUTES, Names, seconds, whole_seconds
from tests.claims import DAY, HOUR, asked, found, record_id, won
from tests.integration.dynamodb.conftest import BACKEND
from tests.integration.dynamodb.wire import Wire

moments = st.datetimes(
    min_value=datetime(2000, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(timezone.utc)
)


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(moments)
def test_moment_comes_back_and_an_expiry_is_the_next_whole_second(moment):
    rounded = whole_seconds(moment)
    assert datetime.fromtimestamp(float(seconds(moment)["N"]), timezone.utc) == moment
    assert seconds(rounded)["N"].isdigit()  # what TTL takes
    assert timedelta(0) <= rounded - moment < timedelta(seconds=1)


def raw(store, key="key"):
    item = store.table.item(record_id(key))
    assert item is not None
    return item


def put(store, item):
    store.table.client.send("put_item", {"TableName": store.table.name, "Item": item})


def test_completed_item_has_the_attributes_that_the_documentation_names(store):
    store.complete(won(store.claim(asked(operation="pay"))), b"done", retention=HOUR)
    item = raw(store)
    absent = {"lockExpiry", "error", "steps"}
    assert set(item) == {"idempotencyKey", *ATTRIBUTES} - absent
    assert item["idempotencyKey"] == {"S": str(record_id())}
    assert item["status"] == {"S": "COMPLETED"}
    assert item["responsePayload"] == {"B": b"done"}
    assert item["expiry"]["N"].isdigit()


def test_records_can_share_one_partition(make_store):
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
        ({"table_name": "t", "nonesuch": 1}, "nonesuch"),
        ({"table_name": "t", "timeout": 0}, "timeout must be more than 0 seconds"),
        ({"table_name": "t", "endpoint_url": "localhost:8000"}, "must begin with http://"),
        ({"table_name": "t", "clock_skew": -1}, "clock_skew must be 0 seconds or more"),
        ({"table_name": "t", "clock_skew": float("nan")}, "and finite"),
    ],
    ids=str,
)
def test_bad_options_are_an_invalid_store(settings, options, message):
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    with pytest.raises(InvalidStore, match=message):
        store_for("default")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("status", {"S": "damaged"}),
        ("epoch", {"N": "1.5"}),
        ("createdAt", {"N": "1E+30"}),
        ("lockExpiry", {"N": "-1E+18"}),
        ("fingerprint", {"BOOL": True}),
        ("token", {"S": "\0"}),
        ("responsePayload", {"S": "text"}),
        ("responsePayload", {"M": {"name": {"S": "text"}}}),
        ("responsePayload", {}),
    ],
    ids=str,
)
def test_R95_forged_attribute_is_an_error(store, attribute, value):
    lease = won(store.claim(asked()))
    if attribute == "responsePayload":
        store.complete(lease, b"result", retention=HOUR)
    item = {**raw(store), attribute: value}
    if not value:
        del item[attribute]
    store.table.item = lambda record_id: item
    with pytest.raises(StoreError, match="damaged"):
        store.get(record_id())


def test_R95_claim_that_meets_a_completed_item_without_a_result_is_an_error(store):
    store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    item = raw(store)
    del item["responsePayload"]
    put(store, item)
    with pytest.raises(StoreError, match="damaged"):
        store.claim(asked())


def test_R95_claim_that_wins_by_a_forged_epoch_is_an_error(store):
    store.release(won(store.claim(asked())))
    put(store, {**raw(store), "epoch": {"N": "1.5"}})
    with pytest.raises(StoreError):
        store.claim(asked())


def test_every_statement_names_the_attributes_of_its_table():
    """An expression attribute name or value that is not used would be refused by DynamoDB."""
    names = Names("idempotencyKey", None, "", {})
    for statement in expressions.STATEMENTS.values():
        prepared = expressions.prepare(statement, names.placeholders)
        text = prepared.get("UpdateExpression", "") + prepared["ConditionExpression"]
        used = [*prepared["ExpressionAttributeNames"], *prepared["ExpressionAttributeValues"]]
        assert all(name in text for name in used)
        assert len(text) < 4096  # DynamoDB's limit


def test_failed_record_without_a_fingerprint_is_claimed_with_any(store):
    store.fail(won(store.claim(asked(fingerprints=()))), "boom")
    won(store.claim(asked(fingerprints=(b"2" * 32,))))
    assert found(store).fingerprint == b"2" * 32


# Pages: `browse`, and the sweep where TTL is off.


@pytest.fixture
def swept(request, make_store, clock):
    """A swept table with seven expired records, three of them completed, and a live one."""
    store = make_store(ttl=False, clock=clock, **getattr(request, "param", {}))
    for number in range(7):
        lease = won(store.claim(asked(str(number))))
        if number % 2:
            store.complete(lease, b"done", retention=HOUR)
    clock.advance(2 * DAY)
    won(store.claim(asked("live")))
    return store


@pytest.mark.parametrize(
    ("swept", "reads"),
    [({}, "Scan"), ({"partition_key": "PK", "sort_key": "SK"}, "Query")],
    indirect=["swept"],
)
def test_page_and_sweep_read_once(swept, reads):
    wire = Wire(swept)
    assert len(swept.browse(limit=3).records) == 3
    assert wire.taken() == [reads]
    assert swept.sweep() == 7
    assert sorted(wire.taken()) == [*["DeleteItem"] * 7, reads]
    assert found(swept, "live").live


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_pages_give_each_record_once(swept, limit):
    assert keys_of_pages(swept, None, limit) == [*map(str, range(7)), "live"]
    assert keys_of_pages(swept, State.COMPLETED, limit) == ["1", "3", "5"]


def keys_of_pages(store, state, limit):
    keys, cursor, first = [], None, True
    while first or cursor is not None:
        page = store.browse(filters=Filters(state=state), cursor=cursor, limit=limit)
        assert len(page.records) <= limit
        keys += [record.key for record in page.records]
        cursor, first = page.cursor, False
    return sorted(keys)


def test_damaged_item_is_told_of_and_does_not_hide_the_others(swept, caplog):
    put(swept, {**raw(swept, "0"), "status": {"S": "NO STATE"}})
    with caplog.at_level(logging.ERROR, "django_idempotency"):
        page = swept.browse()
    assert (len(page.records), page.damaged) == (7, (str(record_id("0"))[:12],))
    [message] = caplog.messages
    assert f"Record {page.damaged[0]} of the table {swept.table.name} cannot be shown." in message
    assert "NO STATE" not in caplog.text


def test_I9_sweep_and_count_go_over_all_pages(swept, monkeypatch):
    monkeypatch.setattr("django_idempotency.stores.dynamodb.store.READ_AT_ONCE", 2)
    assert swept.count_expired() == 7
    assert [swept.sweep(limit=3) for _ in range(4)] == [3, 3, 1, 0]
    assert swept.count_expired() == 0


def test_sweep_is_left_to_TTL_where_it_is_on(make_store, clock):
    store = make_store(clock=clock)
    store.complete(won(store.claim(asked())), b"done", retention=HOUR)
    clock.advance(DAY)
    assert (store.native_expiry, store.sweep()) == (True, 0)
    assert found(store).expired
