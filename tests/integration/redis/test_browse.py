"""Browsing: pages of a SCAN on a server that holds other things, too."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
import redis

from django_idempotency.records import Filters, State
from django_idempotency.stores.redis import SCANS, RedisStore
from tests.integration.redis.claims import HOUR, asked, record_id, won
from tests.integration.redis.conftest import MakeStore


def read(store: RedisStore, **arguments: int | Filters) -> list[list[UUID]]:
    """Return the record ids of each page."""
    pages, cursor = [], None
    while True:
        page = store.browse(cursor=cursor, **arguments)  # type: ignore[arg-type]
        pages.append([record.record_id for record in page.records])
        cursor = page.cursor
        if cursor is None:
            return pages


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_pages_have_every_record_once_and_no_more_than_their_limit(
    version: str, store: RedisStore, limit: int
) -> None:
    keys = [f"key {number}" for number in range(40)]
    for key in keys:
        store.claim(asked(key))

    pages = read(store, limit=limit)

    assert all(len(page) <= limit for page in pages)
    assert sorted(x for page in pages for x in page) == sorted(record_id(key) for key in keys)


def test_other_keys_of_the_server_are_left_alone(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    names = [f"{uuid4()}" for _ in range(300)]
    for name in names:
        client.set(name, "somebody else's")
    client.set(f"{prefix}no record id", "somebody else's")
    store.claim(asked())
    try:
        pages = read(store, limit=10)
    finally:
        client.delete(*names)
    assert [x for page in pages for x in page] == [record_id()]


def test_a_page_ends_after_some_scans_be_it_empty(
    store: RedisStore, client: redis.Redis, version: str
) -> None:
    names = [f"{uuid4()}" for _ in range(50 * SCANS)]
    client.mset(dict.fromkeys(names, "somebody else's"))
    try:
        page = store.browse(limit=1)
    finally:
        client.delete(*names)
    assert page.records == ()
    assert page.cursor is not None


@pytest.mark.parametrize("prefix", ["a*c:", "[abc]:", "a?c:", "a\\c:"])
def test_a_prefix_is_taken_as_it_is(url: str, make_store: MakeStore, prefix: str) -> None:
    own = f"{uuid4().hex}{prefix}"
    store = make_store(url, prefix=own)
    make_store(url, prefix=own.replace(prefix, "abc:")).claim(asked("of another"))
    store.claim(asked())
    assert [x for page in read(store, limit=100) for x in page] == [record_id()]


def test_filters(store: RedisStore) -> None:
    store.claim(asked("live"))
    store.complete(won(store.claim(asked("completed"))), b"result", retention=HOUR)
    pages = read(store, filters=Filters(state=State.COMPLETED))
    assert [x for page in pages for x in page] == [record_id("completed")]


@pytest.mark.parametrize("cursor", ["", "17", "//", "/x/", "/0/abc", "/-1/", "a/b/c/d"])
def test_cursor_of_another_store_is_refused(store: RedisStore, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor is none of the Redis store's"):
        store.browse(cursor=cursor)
