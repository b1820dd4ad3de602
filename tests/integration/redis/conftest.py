"""Servers and stores for the tests of the Redis store, and what these do to them."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis

from django_idempotency.claims import Resolution
from django_idempotency.engine import Engine
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from tests.claims import HOUR, asked, found, lost, operation, record_id, won
from tests.services import or_skip
from tests.services.processes import wait_until
from tests.services.redis import RedisServer, redis_url
from tests.steps import INTENT

BACKEND = "django_idempotency.stores.redis.RedisStore"
#: A lease that lapses soon.
MOMENT = timedelta(milliseconds=30)


@pytest.fixture(scope="session")
def urls():
    """`urls(version)`: the URL of a server that no test stops."""
    with ExitStack() as stack:
        yield functools.cache(
            lambda version: or_skip(lambda: stack.enter_context(redis_url(version)))
        )


@pytest.fixture
def version():
    """The version of the server; a test that depends on it names more of them."""
    return "valkey9"


@pytest.fixture
def url(urls, version):
    return urls(version)


@pytest.fixture
def prefix():
    return f"test-{uuid4().hex}:"


@pytest.fixture
def make_store(prefix):
    """`make_store(url, **options)`: a patient store with keys of its own, closed at the end."""
    made = []

    def make(url=None, **options):
        made.append(RedisStore(url, **{"prefix": prefix, "timeout": 30, **options}))
        return made[-1]

    yield make
    for clients in [store._clients for store in made]:
        for client in [] if clients._connections is None else clients._connections._free:
            client.connection_pool.disconnect()
        if isinstance(clients._client, redis.RedisCluster):
            # Its close() leaves the connections to the nodes to the garbage collector.
            clients._client.disconnect_connection_pools()
        if clients._client is not None:
            clients._client.close()


@pytest.fixture
def store(url, make_store):
    return make_store(url)


@pytest.fixture
def client(url):
    """A client of the test's own, to look behind the store's back."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def memory_full(client):
    """Make the server's memory be full until the end of the test."""
    before = client.config_get("maxmemory")["maxmemory"]
    yield lambda: client.config_set("maxmemory", "1")
    client.config_set("maxmemory", before)


@pytest.fixture
def start_server():
    """Start servers of the test's own, to be killed and started again."""
    with ExitStack() as stack:
        yield lambda *version, **options: or_skip(
            lambda: stack.enter_context(RedisServer(*version, **options))
        )


@pytest.fixture
def link(url, proxy):
    """A proxy in front of the server."""
    parts = urlsplit(url)
    return proxy(parts.hostname, parts.port)


def through(url, proxy):
    """Return `url` with the proxy in the place of the server."""
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials}{at}{proxy.host}:{proxy.port}").geturl()


@contextmanager
def stopped(*servers):
    """Servers that take connections, and answer when they go on."""
    for server in servers:
        os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            os.kill(server.pid, signal.SIGCONT)


def lapse(store, key="key"):
    """Wait until the lease on `key` has lapsed by the server's clock."""
    wait_until(lambda: found(store, key).stale, seconds=60, what="the lease to lapse")


def whole_life(store):
    """Let records live through all that a store can do with them, and fail if one is lost."""
    keys = [f"key {number}" for number in range(20)]
    leases = {key: won(store.claim(asked(key))) for key in keys}
    assert store.renew(leases.values(), HOUR) == set(leases.values())
    for key in keys:
        assert lost(store.claim(asked(key))).state is State.IN_PROGRESS
        store.complete(leases[key], key.encode(), retention=HOUR)
        assert lost(store.claim(asked(key))).result == key.encode()
    ended = won(store.claim(asked("failed", steps=True)))
    store.note(ended, INTENT, duration=HOUR, held=True)
    store.fail(ended, "boom", held=True)
    seen = found(store, "failed")
    decision = Resolution("resume", seen.epoch, seen.state, step="charge", not_done=True)
    assert (seen.held, store.resolve(seen.record_id, decision)) == (True, True)
    again = won(store.claim(asked("failed", steps=True)))
    assert again.journal == INTENT + decision.entry
    assert store.renew([ended, again], HOUR) == {again}
    store.release(again)
    seen = found(store, "failed")
    assert store.resolve(seen.record_id, Resolution("expire", epoch=seen.epoch, state=seen.state))
    left = {identifier for page in pages_of(store, 7) for identifier in page}
    assert left - {seen.record_id} == set(map(record_id, keys))
    assert store.check() == []
    asyncio.run(whole_life_of_coroutines(Engine(store)))


async def whole_life_of_coroutines(engine):
    async def done(lease):
        assert engine.store.renew([lease], HOUR) == {lease}
        return "done"

    keys = [f"coroutine {number}" for number in range(20)]
    for replayed in (False, True):
        calls = (engine.arun(operation(key=key), done) for key in keys)
        outcomes = await asyncio.gather(*calls)
        assert [outcome.replayed for outcome in outcomes] == [replayed] * len(keys)


def pages_of(store, limit):
    """Return the record ids of each page."""
    page = store.browse(limit=limit)
    pages = [page]
    while page.cursor is not None:
        page = store.browse(limit=limit, cursor=page.cursor)
        pages.append(page)
    return [[record.record_id for record in page.records] for page in pages]
