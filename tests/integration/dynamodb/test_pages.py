"""Reading a table in pages: `browse`, and the sweep where TTL is off."""

from __future__ import annotations

import logging

import pytest

from django_idempotency.records import Filters, State
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.testing import FakeClock
from tests.integration.dynamodb.claims import DAY, HOUR, asked, found, record_id, won
from tests.integration.dynamodb.conftest import MakeStore
from tests.integration.dynamodb.wire import Wire


@pytest.fixture(params=[None, "SK"], ids=["partition key", "sort key"])
def sort_key(request: pytest.FixtureRequest) -> str | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def store(sort_key: str | None, make_store: MakeStore) -> DynamoDBStore:
    """A swept table with seven expired records, three of them completed, and a live one."""
    clock = FakeClock()
    keys = {"partition_key": "PK", "sort_key": sort_key} if sort_key else {}
    store = make_store(ttl=False, clock=clock, **keys)
    for number in range(7):
        lease = won(store.claim(asked(str(number))))
        if number % 2:
            store.complete(lease, b"done", retention=HOUR)
    clock.advance(2 * DAY)
    won(store.claim(asked("live")))
    return store


def test_page_and_sweep_read_once(store: DynamoDBStore) -> None:
    wire, read = Wire(store), "Query" if store.names.sort_key else "Scan"

    page = store.browse(limit=3)

    assert (len(page.records), page.cursor is not None, wire.taken()) == (3, True, [read])
    assert store.sweep() == 7
    assert sorted(wire.taken()) == [*["DeleteItem"] * 7, read]
    assert found(store, "live").live


@pytest.mark.parametrize("state", [None, State.COMPLETED], ids=["all", "filtered"])
def test_pages_give_each_record_once(store: DynamoDBStore, state: State | None) -> None:
    for limit in (1, 3, 8):
        cursor, found = None, []
        while True:
            page = store.browse(filters=Filters(state=state), cursor=cursor, limit=limit)
            found += [record.key for record in page.records]
            assert len(page.records) <= limit
            if (cursor := page.cursor) is None:
                break

        everything = [*map(str, range(7)), "live"]
        assert sorted(found) == (everything if state is None else ["1", "3", "5"])


@pytest.mark.parametrize("sort_key", [None])
def test_damaged_item_is_told_of_and_does_not_hide_the_others(
    store: DynamoDBStore, caplog: pytest.LogCaptureFixture
) -> None:
    item = {**(store.table.item(record_id("0")) or {}), "status": {"S": "NO STATE"}}
    store.table.client.send("put_item", {"TableName": store.table.name, "Item": item})

    with caplog.at_level(logging.ERROR, "django_idempotency"):
        records = store.browse().records

    assert len(records) == 7
    [message] = caplog.messages
    assert store.table.name in message


@pytest.mark.parametrize("sort_key", [None])
def test_I9_sweep_and_count_go_over_all_pages(
    store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_idempotency.stores.dynamodb.store.READ_AT_ONCE", 2)

    assert store.count_expired() == 7
    assert [store.sweep(limit=3) for _ in range(4)] == [3, 3, 1, 0]
    assert store.count_expired() == 0


def test_sweep_is_left_to_TTL_where_it_is_on(make_store: MakeStore) -> None:
    clock = FakeClock()
    store = make_store(clock=clock)
    store.complete(won(store.claim(asked())), b"done", retention=HOUR)
    clock.advance(DAY)

    assert (store.native_expiry, store.sweep()) == (True, 0)
    assert found(store).expired
