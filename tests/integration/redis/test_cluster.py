"""A cluster: records on many nodes, one that is away, and forks beside its client."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import redis

from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import DAY, HOUR, asked, found, record_id, won
from tests.integration.redis.conftest import MakeStore, or_skip
from tests.integration.redis.forks import held, in_child
from tests.integration.redis.lives import whole_life
from tests.services.processes import wait_until
from tests.services.redis import HOST, RedisServer

SLOTS = 16_384
#: The nodes give none of them up that a test has stopped.
CLUSTER = {"cluster_enabled": "yes", "cluster_node_timeout": "60000"}
#: How long a store waits for the node that is away.
TIMEOUT = 0.25
#: Leases on each node.
MANY = 40

Renew = Callable[[RedisStore, list[Lease]], set[Lease]]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RedisServer]]:
    """Two primaries, the first with the lower slots; it takes two seconds to be ready."""
    half = SLOTS // 2
    with ExitStack() as stack:
        started = or_skip(lambda: [stack.enter_context(RedisServer(**CLUSTER)) for _ in range(2)])
        one, other = (stack.enter_context(node.client()) for node in started)
        one.execute_command("CLUSTER", "ADDSLOTS", *range(half))
        other.execute_command("CLUSTER", "ADDSLOTS", *range(half, SLOTS))
        one.execute_command("CLUSTER", "MEET", HOST, started[1].port)
        wait_until(lambda: is_ready(one) and is_ready(other), seconds=10, what="the cluster")
        yield started


def is_ready(client: redis.Redis) -> bool:
    information: Any = client.execute_command("CLUSTER INFO")
    return information["cluster_state"] == "ok" and information["cluster_known_nodes"] == "2"


@pytest.fixture
def store(nodes: list[RedisServer], make_store: MakeStore) -> RedisStore:
    return make_store(nodes[0].url, cluster=True)


def test_cluster(nodes: list[RedisServer], store: RedisStore, prefix: str) -> None:
    whole_life(store)
    for node in nodes:
        with node.client() as client:
            assert len(client.keys(f"{prefix}*")) > 3


def test_nodes_that_have_forgotten_the_scripts_are_told_them(
    nodes: list[RedisServer], store: RedisStore
) -> None:
    leases = [won(store.claim(asked(f"key {number}"))) for number in range(20)]
    for node in nodes:
        with node.client() as client:
            client.script_flush()
    assert store.renew(leases, HOUR) == set(leases)


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_claim_without_the_replicas_to_wait_for_is_given_back(
    nodes: list[RedisServer], make_store: MakeStore, way: str
) -> None:
    store = make_store(nodes[0].url, cluster=True, wait_replicas=1, wait_timeout=0.05)
    with pytest.raises(StoreError, match="0 of the 1 replicas"):
        store.claim(asked()) if way == "threads" else asyncio.run(store.aclaim(asked()))
    assert found(store).state is State.RELEASED


def test_cursor_of_a_node_that_is_no_more_is_refused(store: RedisStore) -> None:
    with pytest.raises(ValueError, match="none of the Redis store's"):
        store.browse(cursor="10.0.0.1:7000/17/")


# Renewals: one node that is away does not keep the others' leases from them.


class TestRenewals:
    @pytest.fixture
    def store(self, nodes: list[RedisServer], make_store: MakeStore) -> RedisStore:
        return make_store(nodes[0].url, cluster=True, timeout=TIMEOUT)

    @pytest.fixture
    def leases(self, store: RedisStore) -> list[Lease]:
        """Leases of an hour: so many on the first node, and then as many on the second."""
        names = [f"key {number}" for number in range(200)]
        first = [name for name in names if slot_of(store, record_id(name)) < SLOTS // 2]
        second = [name for name in names if name not in first]
        return [won(store.claim(asked(name, lease=HOUR))) for name in first[:MANY] + second[:MANY]]

    def test_R69_other_nodes_leases_are_renewed_and_the_one_is_waited_for_once(
        self, store: RedisStore, nodes: list[RedisServer], leases: list[Lease]
    ) -> None:
        ended = leases.pop()
        store.release(ended)
        started = time.monotonic()

        with stopped(nodes[0]):
            held = store.renew([*leases, ended], DAY)

        # Its pipeline, and one lease on its own: two tries, and a look for the nodes after each.
        assert time.monotonic() - started < MANY * TIMEOUT
        assert held == set(leases)
        # What the first node has not answered it may still have done when it goes on.
        assert all(renewed(store, lease) for lease in leases[MANY:])

    def test_R69_no_node_at_all_is_an_error(
        self, store: RedisStore, nodes: list[RedisServer], leases: list[Lease]
    ) -> None:
        with stopped(*nodes), pytest.raises(StoreError):
            store.renew(leases, DAY)

    def test_R69_lease_whose_record_has_moved_to_another_node_is_renewed(
        self, store: RedisStore, nodes: list[RedisServer], leases: list[Lease]
    ) -> None:
        moved = leases[0]
        with nodes[0].client() as source, nodes[1].client() as target:
            move(store, moved, source, target)

        assert store.renew(leases, DAY) == set(leases)

        assert renewed(store, moved)


def slot_of(store: RedisStore, identifier: UUID) -> int:
    return int(store._clients._connected().keyslot(store._key(identifier)))


@contextmanager
def stopped(*servers: RedisServer) -> Iterator[None]:
    """Servers that take connections and answer nothing."""
    for server in servers:
        os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            os.kill(server.pid, signal.SIGCONT)


def renewed(store: RedisStore, lease: Lease) -> bool:
    """Whether a lease of an hour has become one of a day."""
    record = found(store, lease.request.key)
    assert record.lease_until is not None
    return record.lease_until - record.now > timedelta(hours=2)


def move(store: RedisStore, lease: Lease, source: redis.Redis, target: redis.Redis) -> None:
    """Give the slot of a record, and the record, from one node to the other."""
    slot, key = slot_of(store, lease.record_id), store._key(lease.record_id)
    from_id: Any = source.execute_command("CLUSTER", "MYID")
    to_id: Any = target.execute_command("CLUSTER", "MYID")
    port = target.connection_pool.connection_kwargs["port"]
    target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", from_id)
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", to_id)
    source.execute_command("MIGRATE", HOST, port, key, 0, 5000)
    for client in (target, source):
        client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", to_id)


# Forks.


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
class TestForks:
    def test_child_does_not_wait_for_a_thread_that_connects(self, store: RedisStore) -> None:
        with held(store._clients._mutex):
            assert in_child(lambda: won(store.claim(asked()))) == 0
        assert found(store).live

    def test_child_does_not_wait_for_a_thread_that_looks_for_the_nodes(
        self, store: RedisStore
    ) -> None:
        lease = won(store.claim(asked()))
        nodes_of_client = store._clients._client.nodes_manager
        mutexes = [store._clients._client._lock, nodes_of_client._lock]
        mutexes.append(nodes_of_client._initialization_lock)
        before = id(store._clients._client)
        del nodes_of_client

        def child() -> None:
            gc.collect()
            own = won(store.claim(asked("child")))
            assert store.renew([own, lease], HOUR) == {own, lease}
            assert store.check() == []

        with ExitStack() as stack:
            for mutex in mutexes:
                stack.enter_context(held(mutex))
            assert in_child(child) == 0
        assert id(store._clients._client) == before
        store.complete(lease, b"result", retention=HOUR)
