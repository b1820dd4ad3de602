"""The contract on the Redis store: the oldest server that it takes, and the newest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar
from urllib.parse import urlsplit
from uuid import UUID

import pytest
import redis

from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis import scripts as redis_scripts
from django_idempotency.testing import StoreContract
from tests.integration.contracts import second_server
from tests.integration.redis.conftest import through
from tests.services import MissingService, may_be_missing
from tests.services.proxy import Proxy
from tests.services.redis import redis_url

URL_OF_CHILDREN = "IDEMPOTENCY_CONTRACT_REDIS_URL"


@pytest.fixture(scope="class")
def server(request: pytest.FixtureRequest) -> Iterator[None]:
    """A server for all rules of a class."""
    try:
        with redis_url(request.cls.version) as url:
            request.cls.url = url
            yield
    except MissingService as error:
        if may_be_missing():
            pytest.skip(str(error))
        raise


@pytest.mark.usefixtures("server")
class RedisContract(StoreContract):
    backend = "django_idempotency.stores.redis.RedisStore"
    native_expiry = True
    newest_first = False
    own_clock = True
    version: ClassVar[str]
    url: ClassVar[str] = ""

    def make_store(self) -> BaseStore:
        return RedisStore(self.url or os.environ[URL_OF_CHILDREN])

    def child_environment(self) -> dict[str, str]:
        return {**super().child_environment(), URL_OF_CHILDREN: self.url}

    def corrupt(self, store: BaseStore, record_id: UUID) -> None:
        with redis.Redis.from_url(self.url) as client:
            assert client.hdel(f"idempotency:{record_id}", "state") == 1

    def forget(self, store: BaseStore, record_id: UUID) -> None:
        with redis.Redis.from_url(self.url) as client:
            assert client.delete(f"idempotency:{record_id}") == 1

    @contextmanager
    def lose_answer(self, store: BaseStore) -> Iterator[None]:
        """On the way through a proxy; each script is known, so what it answers was done."""
        assert isinstance(store, RedisStore)
        with redis.Redis.from_url(self.url) as client:
            for name in filter(str.isupper, redis_scripts.__all__):
                if name != "FIELDS":
                    client.script_load(getattr(redis_scripts, name).text)
        parts = urlsplit(self.url)
        direct = store._clients
        with Proxy(parts.hostname or "", parts.port or 6379) as link:
            store._clients = RedisStore(through(self.url, link))._clients
            store._is_ours = True  # the first script is the write's
            link.cut_after(b"EVALSHA")
            try:
                yield
                assert link.fired.is_set(), "no answer was lost"
            finally:
                store._clients._client.close()
                store._clients = direct


class Redis62Contract(RedisContract):
    version = "redis6"
    racers, process_keys, threads, thread_keys = 2, 10, 4, 5


@second_server
@pytest.mark.xdist_group("redis6")
class TestRedis62(Redis62Contract):
    pass


@pytest.mark.xdist_group("valkey9")
class TestValkey9(RedisContract):
    version = "valkey9"
