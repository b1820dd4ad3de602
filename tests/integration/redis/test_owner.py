"""Whose a prefix is: projects and stages that share a server never answer for one another."""

from __future__ import annotations

import asyncio

import pytest

from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from tests.claims import HOUR, asked, found, lost, won

REFUSED = r"OPTIONS\['prefix'\]"


def test_I10_prefix_of_another_secret_is_refused_and_named(url, make_store, settings):
    production = make_store(url)
    production.complete(won(production.claim(asked())), b"production's", retention=HOUR)

    settings.SECRET_KEY = "staging"
    staging = make_store(url)
    for _ in range(2):
        with pytest.raises(StoreError, match=REFUSED):
            staging.claim(asked())
    with pytest.raises(StoreError, match=REFUSED):
        asyncio.run(make_store(url).aclaim(asked("of a coroutine")))

    assert found(production).result == b"production's"
    assert won(make_store(url, prefix=f"{production.prefix}staging:").claim(asked()))


def test_rotation_of_the_secret_stops_no_process_and_without_a_fallback_needs_the_operator(
    url, make_store, settings, client, prefix
):
    processes = {
        "before": ("old", []),
        "new process": ("new", ["old"]),
        "old process, started again meanwhile": ("old", []),
        "after the fallback is gone": ("new", []),
    }
    for key, (settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS) in processes.items():
        won(make_store(url).claim(asked(key)))

    settings.SECRET_KEY = "newest, without a fallback"
    store = make_store(url)
    with pytest.raises(StoreError, match=REFUSED):
        store.claim(asked())
    assert client.delete(f"{prefix}owner") == 1  # which gives the prefix away

    won(store.claim(asked()))
    assert lost(store.claim(asked("before"))).state is State.IN_PROGRESS


def test_E016_check_tells_of_anothers_prefix_and_takes_none(
    url, make_store, settings, client, prefix
):
    assert make_store(url).check() == []
    assert not client.exists(f"{prefix}owner")
    won(make_store(url).claim(asked()))

    settings.SECRET_KEY = "staging"
    [message] = make_store(url).check()

    assert message.id == "django_idempotency.E016"
    assert "OPTIONS['prefix']" in message.msg
    assert f"{prefix}owner" in message.hint


def test_R95_a_marker_of_another_type_is_anothers_prefix(store, client, prefix):
    client.set(f"{prefix}owner", "a counter of somebody else's")

    with pytest.raises(StoreError, match=REFUSED):
        store.claim(asked())

    assert [message.id for message in store.check()] == ["django_idempotency.E016"]
    assert client.type(f"{prefix}owner") == b"string"
