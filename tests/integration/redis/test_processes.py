"""A store over a fork: parent and child each have connections of their own."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import HOUR, asked, found, lost, won
from tests.integration.redis.forks import held, in_child

pytestmark = [
    pytest.mark.processes,
    # Python warns of a fork beside threads, which a test run has and a pre-forking server not.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def test_store_survives_a_fork(store: RedisStore) -> None:
    lease = won(store.claim(asked()))  # the connection is open
    pool = store._clients._client.connection_pool

    def child() -> None:
        own = won(store.claim(asked("child")))
        store.complete(own, b"child", retention=HOUR)
        assert lost(store.claim(asked())).token == lease.token
        assert store._clients._client.connection_pool is not pool

    assert in_child(child) == 0
    assert store._clients._client.connection_pool is pool
    store.complete(lease, b"result", retention=HOUR)
    assert found(store, "child").result == b"child"


def test_child_does_not_wait_for_a_thread_that_makes_a_client_for_its_loop(
    store: RedisStore,
) -> None:
    with held(store._clients._mutex):
        assert in_child(lambda: won(asyncio.run(store.aclaim(asked())))) == 0
    assert found(store).live


def test_clients_of_a_store_that_nobody_uses_are_not_kept(url: str) -> None:
    clients = weakref.ref(RedisStore(url)._clients)
    gc.collect()
    assert clients() is None
