"""Browsing: pages of a SCAN on a server that holds other things, too."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
import redis

from django_idempotency.stores.redis.store import SCANS, RedisStore
from tests.integration.redis.claims import asked, record_id
from tests.integration.redis.conftest import MakeStore


def read(store: RedisStore, limit: int) -> list[list[UUID]]:
    """Return the record ids of each page."""
    pages, cursor = [], None
    while True:
        page = store.browse(cursor=cursor, limit=limit)
        pages.append([record.record_id for record in page.records])
        cursor = page.cursor
        if cursor is None:
            return pages


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_have_every_record_once_and_no_more_than_their_limit(
    store: RedisStore, client: redis.Redis, prefix: str, limit: int
) -> None:
    """And leave other keys of the server alone, under the prefix too."""
    names = [f"{uuid4()}" for _ in range(100)] + [f"{prefix}no record id"]
    client.mset(dict.fromkeys(names, "somebody else's"))
    keys = [f"key {number}" for number in range(40)]
    for key in keys:
        store.claim(asked(key))

    pages = read(store, limit)

    client.delete(*names)
    assert all(len(page) <= limit for page in pages)
    assert sorted(x for page in pages for x in page) == sorted(record_id(key) for key in keys)


def test_a_page_ends_after_some_scans_be_it_empty(store: RedisStore, client: redis.Redis) -> None:
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
    assert [x for page in read(store, 100) for x in page] == [record_id()]


@pytest.mark.parametrize("cursor", ["", "17", "//", "/x/", "/0/abc", "/-1/", "a/b/c/d"])
def test_cursor_of_another_store_is_refused(store: RedisStore, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor is none of the Redis store's"):
        store.browse(cursor=cursor)
