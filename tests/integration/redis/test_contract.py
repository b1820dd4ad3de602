"""The contract on the Redis store: the oldest server that it takes, and the newest."""

from __future__ import annotations

import os
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import redis

from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis import scripts as redis_scripts
from django_idempotency.testing import StoreContract
from tests.integration.contracts import second_server
from tests.integration.redis.conftest import through
from tests.services.proxy import Proxy

URL_OF_CHILDREN = "IDEMPOTENCY_CONTRACT_REDIS_URL"


@pytest.fixture(scope="class")
def server(request, urls):
    """The server of a class."""
    request.cls.url = urls(request.cls.version)


@pytest.mark.usefixtures("server")
class RedisContract(StoreContract):
    backend = "django_idempotency.stores.redis.RedisStore"
    native_expiry = True
    newest_first = False
    own_clock = True
    patience = 60  # each process imports Django, which takes seconds on a busy machine
    url = ""

    def make_store(self):
        return RedisStore(self.url or os.environ[URL_OF_CHILDREN], timeout=30)

    def child_environment(self):
        return {**super().child_environment(), URL_OF_CHILDREN: self.url}

    def corrupt(self, store, record_id):
        with redis.Redis.from_url(self.url) as client:
            assert client.hdel(f"idempotency:{record_id}", "state") == 1

    def forget(self, store, record_id):
        with redis.Redis.from_url(self.url) as client:
            assert client.delete(f"idempotency:{record_id}") == 1

    @contextmanager
    def lose_answer(self, store):
        """On the way through a proxy; each script is known, so what it answers was done."""
        with redis.Redis.from_url(self.url) as client:
            for name in filter(str.isupper, redis_scripts.__all__):
                if name != "FIELDS":
                    client.script_load(getattr(redis_scripts, name).text)
        parts = urlsplit(self.url)
        direct = store._clients
        with Proxy(parts.hostname, parts.port) as link:
            store._clients = RedisStore(through(self.url, link))._clients
            store._is_ours = True  # the first script is the write's
            link.cut_after(b"EVALSHA")
            try:
                yield
                assert link.fired.is_set(), "no answer was lost"
            finally:
                store._clients._client.close()
                for client in store._clients._connections._free:
                    client.connection_pool.disconnect()
                    client.close()
                store._clients = direct


class Redis62Contract(RedisContract):
    version = "redis6"


@second_server
@pytest.mark.xdist_group("redis6")
class TestRedis62(Redis62Contract):
    pass


@pytest.mark.xdist_group("valkey9")
class TestValkey9(RedisContract):
    version = "valkey9"
    racers, process_keys = 3, 50
