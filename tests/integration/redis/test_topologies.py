"""Where the server may be: a cluster, behind sentinels, behind TLS, at a unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis

from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import HOUR, asked, found, lost, record_id, won
from tests.integration.redis.conftest import MakeStore, StartServer, or_skip
from tests.integration.redis.tls import TLSTerminator, self_signed
from tests.services.processes import wait_until
from tests.services.redis import HOST, RedisSentinel, RedisServer

SLOTS = 16_384
CLUSTER = {"cluster_enabled": "yes", "cluster_node_timeout": "2000"}


def whole_life(store: RedisStore) -> None:
    """Let records live through all that a store can do with them, and fail if one is lost."""
    keys = [f"key {number}" for number in range(20)]
    leases = {key: won(store.claim(asked(key))) for key in keys}
    assert store.renew(leases.values(), HOUR) == set(leases.values())
    for key in keys:
        assert lost(store.claim(asked(key))).state is State.IN_PROGRESS
        store.complete(leases[key], key.encode(), retention=HOUR)
        assert lost(store.claim(asked(key))).result == key.encode()
    ended = won(store.claim(asked("failed")))
    store.fail(ended, "boom")
    again = won(store.claim(asked("failed")))
    assert store.renew([ended, again], HOUR) == {again}
    store.release(again)
    seen = found(store, "failed")
    assert seen.state is State.RELEASED
    assert store.resolve(seen.record_id, "expire", epoch=seen.epoch, state=seen.state)
    assert sorted(browsed(store)) == sorted(record_id(key) for key in keys)
    assert store.check() == []


def browsed(store: RedisStore) -> list[Any]:
    found, cursor = [], None
    while True:
        page = store.browse(limit=7, cursor=cursor)
        found += [record.record_id for record in page.records if not record.expired]
        cursor = page.cursor
        if cursor is None:
            return found


async def whole_life_of_coroutines(store: RedisStore) -> None:
    keys = [f"coroutine {number}" for number in range(20)]
    leases = [won(lease) for lease in await asyncio.gather(*(store.aclaim(asked(k)) for k in keys))]
    assert await store.arenew(leases, HOUR) == set(leases)
    for key, lease in zip(keys, leases, strict=True):
        await store.acomplete(lease, key.encode(), retention=HOUR)
        assert lost(await store.aclaim(asked(key))).result == key.encode()
    ended = won(await store.aclaim(asked("failed coroutine")))
    await store.afail(ended, "boom")
    again = won(await store.aclaim(asked("failed coroutine")))
    await store.arelease(again)
    record = await store.aget(again.record_id)
    assert record is not None
    assert record.state is State.RELEASED


# A cluster.


@contextmanager
def cluster(version: str, **options: str) -> Iterator[list[RedisServer]]:
    """Two primaries, each with half of the slots; it takes two seconds to be ready."""
    half = SLOTS // 2
    options = {**CLUSTER, **options}
    with ExitStack() as stack:
        first, second = (stack.enter_context(RedisServer(version, **options)) for _ in range(2))
        one, other = (stack.enter_context(node.client()) for node in (first, second))
        one.execute_command("CLUSTER", "ADDSLOTS", *range(half))
        other.execute_command("CLUSTER", "ADDSLOTS", *range(half, SLOTS))
        one.execute_command("CLUSTER", "MEET", HOST, second.port)
        wait_until(lambda: is_ready(one) and is_ready(other), seconds=10, what="the cluster")
        yield [first, second]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Callable[[str], list[RedisServer]]]:
    """The nodes of a cluster of this version, for all tests that leave it as it is."""
    with ExitStack() as stack:
        started: dict[str, list[RedisServer]] = {}

        def nodes(version: str) -> list[RedisServer]:
            if version not in started:
                started[version] = stack.enter_context(cluster(version))
            return started[version]

        yield nodes


@pytest.fixture
def nodes(version: str, clusters: Callable[[str], list[RedisServer]]) -> list[RedisServer]:
    return or_skip(lambda: clusters(version))


def is_ready(client: redis.Redis) -> bool:
    information: Any = client.execute_command("CLUSTER INFO")
    return information["cluster_state"] == "ok" and information["cluster_known_nodes"] == "2"


def test_cluster(nodes: list[RedisServer], make_store: MakeStore, prefix: str) -> None:
    store = make_store(nodes[0].url, cluster=True)
    whole_life(store)
    asyncio.run(whole_life_of_coroutines(store))
    for node in nodes:
        with node.client() as client:
            assert len(client.keys(f"{prefix}*")) > 3


def test_cluster_whose_nodes_have_forgotten_the_scripts(
    nodes: list[RedisServer], make_store: MakeStore
) -> None:
    store = make_store(nodes[0].url, cluster=True)
    leases = [won(store.claim(asked(f"key {number}"))) for number in range(20)]
    for node in nodes:
        with node.client() as client:
            client.script_flush()
    assert store.renew(leases, HOUR) == set(leases)


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_cluster_without_replicas_to_wait_for(
    nodes: list[RedisServer], make_store: MakeStore, way: str
) -> None:
    store = make_store(nodes[0].url, cluster=True, wait_replicas=1, wait_timeout=0.05)
    with pytest.raises(StoreError, match="0 of the 1 replicas"):
        store.claim(asked()) if way == "threads" else asyncio.run(store.aclaim(asked()))
    assert found(store).state is State.RELEASED


def test_cluster_with_a_replica_to_wait_for(
    start_server: StartServer, make_store: MakeStore
) -> None:
    with ExitStack() as stack:
        nodes = or_skip(lambda: stack.enter_context(cluster("valkey9")))
        with_replica(nodes[0], start_server(**CLUSTER))
        store = make_store(nodes[0].url, cluster=True, wait_replicas=1, wait_timeout=0.5)
        won_ones = 0
        for number in range(10):
            try:
                won(store.claim(asked(f"key {number}")))
            except StoreError:
                continue  # its slot is on the other primary, which has no replica
            won_ones += 1
        assert 0 < won_ones < 10


def with_replica(server: RedisServer, replica: RedisServer) -> None:
    """Make `replica` that of a primary with the lower half of the slots."""
    with server.client() as primary, replica.client() as client:
        client.execute_command("CLUSTER", "MEET", HOST, server.port)
        identity: Any = primary.execute_command("CLUSTER", "MYID")
        wait_until(lambda: knows(client, identity), seconds=10, what="the nodes to meet")
        client.execute_command("CLUSTER", "REPLICATE", identity)
        slots = {f"{n}": primary.cluster("KEYSLOT", n) for n in range(100)}
        written = next(name for name, slot in slots.items() if slot < SLOTS // 2)
        primary.set(written, "before")
        wait_until(lambda: primary.wait(1, 100) == 1, seconds=10, what="the replica to follow")


def knows(client: redis.Redis, identity: bytes) -> bool:
    nodes: Any = client.execute_command("CLUSTER NODES")
    return identity.decode() in str(nodes)


def test_cursor_of_a_node_that_is_no_more_is_refused(
    nodes: list[RedisServer], make_store: MakeStore
) -> None:
    store = make_store(nodes[0].url, cluster=True)
    with pytest.raises(ValueError, match="none of the Redis store's"):
        store.browse(cursor="10.0.0.1:7000/17/")


# Sentinels.


@pytest.fixture
def sentinel(
    version: str,
    start_server: StartServer,
    start_sentinel: Callable[[RedisServer], RedisSentinel],
) -> RedisSentinel:
    return start_sentinel(start_server(version))


def test_sentinels(sentinel: RedisSentinel, make_store: MakeStore) -> None:
    store = make_store(sentinels=[(HOST, sentinel.port)], service_name="main")
    whole_life(store)
    asyncio.run(whole_life_of_coroutines(store))


def test_url_beside_sentinels_has_what_is_not_the_place(
    sentinel: RedisSentinel, make_store: MakeStore
) -> None:
    place = {"sentinels": [(HOST, sentinel.port)], "service_name": "main"}
    store = make_store("redis://nobody.invalid:1/3", **place)
    store.claim(asked())
    assert found(store).live
    assert make_store(**place).get(record_id()) is None  # that is database 0


def test_service_that_the_sentinels_do_not_know_is_an_error(
    sentinel: RedisSentinel, make_store: MakeStore
) -> None:
    store = make_store(sentinels=[(HOST, sentinel.port)], service_name="nobody")
    with pytest.raises(StoreError):
        store.claim(asked())


def test_failover_is_followed(
    start_server: StartServer,
    start_sentinel: Callable[[RedisServer], RedisSentinel],
    make_store: MakeStore,
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
    wait_until(lambda: found_by(sentinel) == replica.port, seconds=20, what="the failover")

    store.complete(lease, b"result", retention=HOUR)

    assert found(make_store(replica.url)).result == b"result"


def knows_a_replica(sentinel: redis.Redis) -> bool:
    replicas: Any = sentinel.execute_command("SENTINEL", "REPLICAS", "main")
    return len(replicas) == 1


def found_by(sentinel: RedisSentinel) -> int | None:
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


# TLS and unix sockets.


@pytest.fixture
def terminator(version: str, url: str, tmp_path: Path) -> Iterator[TLSTerminator]:
    """TLS in front of a server that does without it."""
    now = datetime.now(timezone.utc)
    certificate = self_signed(tmp_path, until=now + timedelta(days=1))
    with TLSTerminator(url, certificate) as terminator:
        yield terminator


def test_TLS(terminator: TLSTerminator, make_store: MakeStore) -> None:
    # A connection takes its time: each one reads all of the machine's certificates, too.
    store = make_store(f"{terminator.url}?ssl_ca_certs={terminator.certificate}", timeout=15)
    whole_life(store)
    asyncio.run(whole_life_of_coroutines(store))


def test_certificate_that_nobody_trusts_is_an_error(
    terminator: TLSTerminator, make_store: MakeStore
) -> None:
    store = make_store(terminator.url)
    with pytest.raises(StoreError):
        store.claim(asked())


def test_unix_socket(
    version: str, start_server: StartServer, make_store: MakeStore, tmp_path: Path
) -> None:
    server = start_server(version, unixsocket="redis.sock", unixsocketperm="700")
    store = make_store(f"unix://{server.directory}/redis.sock?db=2")
    whole_life(store)
    asyncio.run(whole_life_of_coroutines(store))
