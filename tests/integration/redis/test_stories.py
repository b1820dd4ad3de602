"""What a client sees of the Redis store, and servers that are away or have no memory left."""

from __future__ import annotations

import pytest

from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis.scripts import CLAIM
from tests.claims import HOUR, asked, found, record_id, won
from tests.integration.redis.conftest import BACKEND, through
from tests.integration.stories import Behind, EncryptionStory, HTTPStory, ServerStory
from tests.unit.http.api import Api


class TestHTTP(HTTPStory):
    @pytest.fixture
    def api(self, settings, prefix, url, link):
        options = {"url": through(url, link), "prefix": prefix, "timeout": 30}
        settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
        api = Api()
        api.client.raise_request_exception = False
        return api


class TestEncryption(EncryptionStory):
    @pytest.fixture
    def alias(self, url, prefix):
        return {"BACKEND": BACKEND, "OPTIONS": {"url": url, "prefix": prefix, "timeout": 30}}

    @pytest.fixture
    def behind(self, client, prefix):
        class InRedis(Behind):
            def everything(self):
                hashes = [key for key in client.keys(f"{prefix}*") if client.type(key) == b"hash"]
                return (
                    b"".join(client.dump(key) for key in hashes)
                    + repr([client.hgetall(key) for key in hashes]).encode()
                )

            def put(self, record_id, result):
                [key] = client.keys(f"{prefix}*{record_id}*")
                client.hset(key, "result", result)

            def damage(self, record_id):
                [key] = client.keys(f"{prefix}*{record_id}*")
                client.hset(key, "created_at", "yesterday")

        return InRedis()


class TestServer(ServerStory):
    @property
    def CLAIM(self):
        return CLAIM.sha.encode()

    @pytest.fixture
    def make_linked(self, url, link, make_store, client):
        """The server knows the script."""
        client.script_load(CLAIM.text)
        return lambda timeout: make_store(through(url, link), timeout=timeout)


@pytest.mark.parametrize("version", ["valkey9", "redis6"])
def test_server_whose_memory_is_full_takes_what_running_work_has_to_say_and_no_new_key(
    store, memory_full
):
    leases = [won(store.claim(asked(key))) for key in ("done", "failed", "released")]
    memory_full()

    with pytest.raises(StoreError):
        store.claim(asked("new"))
    assert store.get(record_id("new")) is None
    assert store.renew(leases, HOUR) == set(leases)
    store.complete(leases[0], b"result", retention=HOUR)
    store.fail(leases[1], "boom")
    store.release(leases[2])

    states = [found(store, lease.request.key).state for lease in leases]
    assert states == [State.COMPLETED, State.FAILED, State.RELEASED]
