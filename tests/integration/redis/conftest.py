"""Servers, stores and requests that the tests of the Redis store begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis

from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.wire import Wiretap
from tests.services import MissingService, may_be_missing
from tests.services.proxy import Proxy
from tests.services.redis import RedisSentinel, RedisServer, redis_url

T = TypeVar("T")

BACKEND = "django_idempotency.stores.redis.RedisStore"
#: `make_store(url, **options)`: a store with keys of its own.
MakeStore = Callable[..., RedisStore]


class StartServer(Protocol):
    def __call__(self, version: str = "valkey9", **options: str) -> RedisServer: ...


@pytest.fixture(scope="session")
def urls() -> Iterator[Callable[[str], str]]:
    """The URL of a server of this version that no test stops."""
    with ExitStack() as stack:
        started: dict[str, str] = {}

        def url(version: str) -> str:
            if version not in started:
                started[version] = stack.enter_context(redis_url(version))
            return started[version]

        yield url


@pytest.fixture
def version() -> str:
    """The version of the server; a test that depends on it names more of them."""
    return "valkey9"


@pytest.fixture
def url(urls: Callable[[str], str], version: str) -> str:
    """A server that no test stops."""
    return or_skip(lambda: urls(version))


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex}:"


@pytest.fixture
def make_store(prefix: str) -> Iterator[MakeStore]:
    """Make stores; what is still connected at the end of the test is closed."""
    made: list[RedisStore] = []

    def make(url: str | None = None, **options: Any) -> RedisStore:
        store = RedisStore(url, **{"prefix": prefix, **options})
        made.append(store)
        return store

    yield make
    for store in made:
        client = store._clients._client
        if isinstance(client, redis.RedisCluster):
            # Its close() leaves the connections to the nodes to the garbage collector.
            client.disconnect_connection_pools()
        if client is not None:
            client.close()


@pytest.fixture
def store(url: str, make_store: MakeStore) -> RedisStore:
    return make_store(url)


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    """A client of the test's own, to look behind the store's back."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Start servers of the test's own, to be killed and started again."""
    with ExitStack() as stack:

        def start(version: str = "valkey9", **options: str) -> RedisServer:
            return or_skip(lambda: stack.enter_context(RedisServer(version, **options)))

        yield start


@pytest.fixture
def start_sentinel() -> Iterator[Callable[[RedisServer], RedisSentinel]]:
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(RedisSentinel(server))


@pytest.fixture
def proxied(url: str, proxy: Callable[[str, int], Proxy]) -> tuple[Proxy, str]:
    """A proxy in front of the server, and the URL that leads through it."""
    parts = urlsplit(url)
    started = proxy(parts.hostname or "", parts.port or 6379)
    return started, through(url, started)


@pytest.fixture
def wire(url: str) -> Iterator[Wiretap]:
    """A proxy in front of the server that counts."""
    parts = urlsplit(url)
    with Wiretap(parts.hostname or "", parts.port or 6379) as tap:
        yield tap


def through(url: str, proxy: Proxy) -> str:
    """Return `url` with the proxy in the place of the server."""
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials}{at}{proxy.host}:{proxy.port}").geturl()


def or_skip(start: Callable[[], T]) -> T:
    """Call `start`; a server that this machine lacks skips the test if that is allowed."""
    try:
        return start()
    except MissingService as error:
        if may_be_missing():
            pytest.skip(str(error))
        raise
