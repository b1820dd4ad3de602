"""Browsing: pages of a SCAN on a server that holds other things, too."""

from __future__ import annotations

import itertools
from uuid import uuid4

import pytest

from django_idempotency.stores.redis.store import SCANS
from tests.claims import asked, record_id
from tests.integration.redis.conftest import pages_of


@pytest.fixture
def others(client):
    """Keys of somebody else's, as many as are asked for."""
    names = []

    def put(number, *more):
        names.extend([*(f"{uuid4()}" for _ in range(number)), *more])
        client.mset(dict.fromkeys(names, "somebody else's"))

    yield put
    client.delete(*names)


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_have_every_record_once_and_no_more_than_their_limit(store, others, prefix, limit):
    others(100, f"{prefix}no record id")
    keys = [f"key {number}" for number in range(40)]
    for key in keys:
        store.claim(asked(key))

    pages = pages_of(store, limit)

    assert all(len(page) <= limit for page in pages)
    assert sorted(itertools.chain(*pages)) == sorted(map(record_id, keys))


def test_a_page_ends_after_some_scans_be_it_empty(store, others):
    others(50 * SCANS)
    page = store.browse(limit=1)
    assert (page.records, page.cursor is None) == ((), False)


@pytest.mark.parametrize("prefix", ["a*c:", "[abc]:", "a?c:", "a\\c:"])
def test_a_prefix_is_taken_as_it_is(url, make_store, prefix):
    own = f"{uuid4().hex}{prefix}"
    make_store(url, prefix=own.replace(prefix, "abc:")).claim(asked("of another"))
    store = make_store(url, prefix=own)
    store.claim(asked())
    assert list(itertools.chain(*pages_of(store, 100))) == [record_id()]


@pytest.mark.parametrize("cursor", ["", "17", "//", "/x/", "/0/abc", "/-1/", "a/b/c/d"])
def test_cursor_of_another_store_is_refused(store, cursor):
    with pytest.raises(ValueError, match="Redis store did not make this cursor"):
        store.browse(cursor=cursor)
