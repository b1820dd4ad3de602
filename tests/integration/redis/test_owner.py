"""Whose a prefix is: projects and stages that share a server never answer for one another."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import HOUR, asked, found, lost, record_id, won
from tests.integration.redis.conftest import MakeStore, through
from tests.integration.redis.wire import Wiretap

REFUSED = r"OPTIONS\['prefix'\]"


def claim(store: RedisStore, key: str = "key") -> Any:
    return store.claim(asked(key))


def test_I10_prefix_of_another_secret_is_refused_and_named(
    url: str, make_store: MakeStore, settings: Any
) -> None:
    production = make_store(url)
    production.complete(won(claim(production)), b"production's", retention=HOUR)

    settings.SECRET_KEY = "staging"
    staging = make_store(url)
    for _ in range(2):
        with pytest.raises(StoreError, match=REFUSED):
            claim(staging)

    assert found(production).result == b"production's"
    assert won(claim(make_store(url, prefix=f"{production.prefix}staging:")))


def test_marker_is_asked_for_once(url: str, make_store: MakeStore, wire: Wiretap) -> None:
    won(claim(make_store(url), "first"))
    store = make_store(through(url, wire))

    won(claim(store, "second"))
    assert wire.sent.count(b":owner") == 1
    wire.forget()
    won(claim(store, "third"))

    assert b":owner" not in wire.sent


def test_rotation_of_the_secret_stops_neither_the_old_processes_nor_the_new(
    url: str, make_store: MakeStore, settings: Any
) -> None:
    settings.SECRET_KEY = "old"
    won(claim(make_store(url), "before"))

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old"]
    won(claim(make_store(url), "new process"))
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "old", []
    won(claim(make_store(url), "old process, started again meanwhile"))
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", []
    won(claim(make_store(url), "after the fallback is gone"))

    settings.SECRET_KEY = "newest, without a fallback"
    with pytest.raises(StoreError, match=REFUSED):
        claim(make_store(url))


def test_operator_gives_a_prefix_away_by_deleting_the_marker(
    url: str, make_store: MakeStore, settings: Any, client: redis.Redis, prefix: str
) -> None:
    old = make_store(url)
    won(claim(old, "before"))
    settings.SECRET_KEY = "rotated without a fallback"
    store = make_store(url)
    with pytest.raises(StoreError, match=REFUSED):
        claim(store)

    assert client.delete(f"{prefix}owner") == 1

    won(claim(store))
    assert lost(claim(store, "before")).state is State.IN_PROGRESS
    won(claim(old, "of a process that has looked before"))


def test_marker_is_no_record_and_says_nothing_of_the_secret(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    won(claim(store))

    assert [record.record_id for record in store.browse().records] == [record_id()]
    [digest] = client.hkeys(f"{prefix}owner")
    assert len(digest) == 64
    assert client.ttl(f"{prefix}owner") == -1


def test_E016_check_tells_of_anothers_prefix_and_takes_none(
    url: str, make_store: MakeStore, settings: Any, client: redis.Redis, prefix: str
) -> None:
    assert make_store(url).check() == []
    assert not client.exists(f"{prefix}owner")
    won(claim(make_store(url)))

    settings.SECRET_KEY = "staging"
    [message] = make_store(url).check()

    assert message.id == "django_idempotency.E016"
    assert "OPTIONS['prefix']" in message.msg
    assert f"{prefix}owner" in message.hint


def test_R95_a_marker_of_another_type_is_anothers_prefix(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    client.set(f"{prefix}owner", "a counter of somebody else's")

    with pytest.raises(StoreError, match=REFUSED):
        claim(store)
    [message] = store.check()

    assert message.id == "django_idempotency.E016"
    assert client.type(f"{prefix}owner") == b"string"
