"""The contract on the Redis store: the oldest server that it takes, and the newest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar
from uuid import UUID

import pytest
import redis

from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.redis import RedisStore
from django_idempotency.testing import StoreContract
from tests.services import MissingService, may_be_missing
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


@pytest.mark.xdist_group("redis6")
class TestRedis62(RedisContract):
    version = "redis6"


@pytest.mark.xdist_group("valkey9")
class TestValkey9(RedisContract):
    version = "valkey9"
