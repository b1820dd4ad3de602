"""Whose a prefix is: projects and stages that share a server never answer for one another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
import redis

import django_idempotency as idempotency
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import HOUR, asked, found, lost, record_id, won
from tests.integration.redis.conftest import MakeStore, through
from tests.integration.redis.wire import Wiretap

REFUSED = r"OPTIONS\['prefix'\]"


def claim(store: RedisStore, key: str = "key") -> Any:
    return store.claim(asked(key))


def aclaim(store: RedisStore, key: str = "key") -> Any:
    return asyncio.run(store.aclaim(asked(key)))


either = pytest.mark.parametrize("claim", [claim, aclaim])


@either
def test_I10_prefix_of_another_secret_is_refused_and_named(
    version: str,
    url: str,
    make_store: MakeStore,
    settings: Any,
    claim: Callable[..., Any],
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


def test_I10_stage_with_another_secret_runs_nothing_and_the_log_says_why(
    url: str, prefix: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    backend = "django_idempotency.stores.redis.RedisStore"
    for secret in ("production", "staging"):
        settings.SECRET_KEY = secret
        options = {"url": url, "prefix": prefix}
        settings.IDEMPOTENCY = {"default": {"BACKEND": backend, "OPTIONS": options}}
        if secret == "production":
            idempotency.run(lambda lease: "production's", key="k", scope="s")
        else:
            with pytest.raises(StoreError, match=REFUSED):
                idempotency.run(lambda lease: pytest.fail("ran"), key="k", scope="s")

    assert "OPTIONS['prefix']" in caplog.text


@either
def test_marker_is_asked_for_once(
    url: str, make_store: MakeStore, client: redis.Redis, claim: Callable[..., Any]
) -> None:
    parts = url.removeprefix("redis://").partition("/")[0].rpartition(":")
    wire = Wiretap(parts[0], int(parts[2]))
    with wire:
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
    won(claim(make_store(url), "before"))
    settings.SECRET_KEY = "rotated without a fallback"
    store = make_store(url)
    with pytest.raises(StoreError, match=REFUSED):
        claim(store)

    assert client.delete(f"{prefix}owner") == 1

    won(claim(store))
    assert lost(claim(store, "before")).state is State.IN_PROGRESS


def test_server_that_forgot_all_is_no_harm(
    url: str, make_store: MakeStore, client: redis.Redis, prefix: str
) -> None:
    store = make_store(url)
    won(claim(store))
    client.delete(f"{prefix}owner", f"{prefix}{record_id()}")

    won(claim(store))
    won(claim(make_store(url), "other process"))

    assert client.exists(f"{prefix}owner")


def test_marker_is_no_record_and_says_nothing_of_the_secret(
    url: str, store: RedisStore, client: redis.Redis, prefix: str, settings: Any
) -> None:
    won(claim(store))

    assert [record.key for record in store.browse().records] == ["key"]
    [digest] = client.hkeys(f"{prefix}owner")
    assert len(digest) == 64
    assert client.ttl(f"{prefix}owner") == -1


def test_forked_child_goes_on_with_the_prefix(url: str, make_store: MakeStore) -> None:
    store = make_store(url)
    won(claim(store))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if claim(store, "child").fencing_token else 1)
    assert os.waitpid(pid, 0)[1] == 0


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


@either
def test_R95_a_marker_of_another_type_is_anothers_prefix(
    version: str,
    url: str,
    make_store: MakeStore,
    client: redis.Redis,
    prefix: str,
    claim: Callable[..., Any],
) -> None:
    client.set(f"{prefix}owner", "a counter of somebody else's")
    store = make_store(url)

    with pytest.raises(StoreError, match=REFUSED):
        claim(store)
    [message] = store.check()

    assert message.id == "django_idempotency.E016"
    assert client.type(f"{prefix}owner") == b"string"
