"""Where a server may be: behind sentinels, behind TLS, at a unix socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from django_idempotency.exceptions import StoreError
from tests.integration.redis.claims import HOUR, asked, found, record_id, won
from tests.integration.redis.conftest import MakeStore, StartServer
from tests.integration.redis.lives import whole_life
from tests.integration.redis.tls import TLSProxy, self_signed
from tests.services.processes import wait_until
from tests.services.redis import HOST, RedisSentinel, RedisServer

StartSentinel = Callable[[RedisServer], RedisSentinel]


def test_sentinels(
    start_server: StartServer, start_sentinel: StartSentinel, make_store: MakeStore
) -> None:
    sentinel = start_sentinel(start_server())
    sentinels = [(HOST, sentinel.port)]
    place = {"sentinels": sentinels, "service_name": "main"}
    store = make_store(**place)
    whole_life(store)

    with pytest.raises(StoreError):
        make_store(sentinels=sentinels, service_name="nobody").claim(asked())

    # A URL beside them says all that is not the place.
    other = make_store("redis://nobody.invalid:1/3", **place)
    other.claim(asked())
    assert found(other).live
    assert store.get(record_id()) is None  # that is database 0


def test_failover_is_followed(
    start_server: StartServer, start_sentinel: StartSentinel, make_store: MakeStore
) -> None:
    primary = start_server("redis6")
    replica = start_server("redis6", replicaof=f"{HOST} {primary.port}")
    with primary.client() as client:
        client.set("written", "before")
        wait_until(lambda: client.wait(1, 100) == 1, seconds=10, what="the replica")
    sentinel = start_sentinel(primary)
    store = make_store(
        sentinels=[(HOST, sentinel.port)], service_name="main", wait_replicas=1, timeout=5
    )
    lease = won(store.claim(asked()))  # the replica has it
    with sentinel.client() as client:
        wait_until(lambda: knows_a_replica(client), seconds=15, what="the sentinel to know it")
    primary.kill()
    wait_until(lambda: leads_to(sentinel) == replica.port, seconds=20, what="the failover")

    store.complete(lease, b"result", retention=HOUR)

    assert found(make_store(replica.url)).result == b"result"


def knows_a_replica(sentinel: redis.Redis) -> bool:
    replicas: Any = sentinel.execute_command("SENTINEL", "REPLICAS", "main")
    return len(replicas) == 1


def leads_to(sentinel: RedisSentinel) -> int | None:
    """The port that a sentinel sends clients to; None while it knows of none."""
    asked = redis.Sentinel([(HOST, sentinel.port)])
    try:
        address: tuple[str, int] = asked.discover_master("main")
    except redis.sentinel.MasterNotFoundError:
        return None
    finally:
        for client in asked.sentinels:
            client.close()
    return address[1]


def test_TLS(url: str, make_store: MakeStore, tmp_path: Path) -> None:
    parts = urlsplit(url)
    with TLSProxy(parts.hostname or "", parts.port or 0, self_signed(tmp_path)) as proxy:
        place = f"rediss://{HOST}:{proxy.port}/0"
        # A connection takes its time: each one reads all of the machine's certificates, too.
        trusted = f"{place}?ssl_ca_certs={proxy.certificate}"
        whole_life(make_store(trusted, timeout=15, max_connections=2))

        with pytest.raises(StoreError):  # a certificate that nobody trusts
            make_store(place).claim(asked())


def test_unix_socket(start_server: StartServer, make_store: MakeStore) -> None:
    server = start_server(unixsocket="redis.sock", unixsocketperm="700")
    whole_life(make_store(f"unix://{server.directory}/redis.sock?db=2"))
