"""Renewals in a cluster: one node that is away does not keep the others' leases from them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from django_idempotency.exceptions import StoreError
from django_idempotency.records import Lease
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import HOUR, asked, found, record_id, won
from tests.integration.redis.conftest import MakeStore, or_skip
from tests.integration.redis.test_topologies import SLOTS, cluster
from tests.services.redis import HOST, RedisServer

DAY = timedelta(days=1)
#: How long a store waits for the node that is away.
TIMEOUT = 0.25
#: Leases on each node.
MANY = 40

Renew = Callable[[RedisStore, list[Lease]], set[Lease]]

WAYS: dict[str, Renew] = {
    "threads": lambda store, leases: store.renew(leases, DAY),
    "coroutines": lambda store, leases: asyncio.run(store.arenew(leases, DAY)),
}


@pytest.fixture(params=WAYS)
def renew(request: pytest.FixtureRequest) -> Renew:
    return WAYS[request.param]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RedisServer]]:
    """Two primaries, the first with the lower slots; neither gives the other up."""
    with ExitStack() as stack:
        patient = cluster("valkey9", cluster_node_timeout="60000")
        yield or_skip(lambda: stack.enter_context(patient))


@pytest.fixture
def store(nodes: list[RedisServer], make_store: MakeStore) -> RedisStore:
    return make_store(nodes[0].url, cluster=True, timeout=TIMEOUT)


@pytest.fixture
def leases(store: RedisStore, nodes: list[RedisServer]) -> list[Lease]:
    """Leases of an hour: so many on the first node, and then as many on the second."""
    names = [f"key {number}" for number in range(200)]
    first = [name for name in names if slot_of(store, record_id(name)) < SLOTS // 2]
    second = [name for name in names if name not in first]
    return [won(store.claim(asked(name, lease=HOUR))) for name in first[:MANY] + second[:MANY]]


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
    return record.lease_until - record.now > HOUR


def test_R69_leases_on_the_other_nodes_are_renewed(
    store: RedisStore, nodes: list[RedisServer], leases: list[Lease], renew: Renew
) -> None:
    with stopped(nodes[0]):
        held = renew(store, leases)

    assert held == set(leases)
    # What the first node has not answered it may still have done when it goes on.
    assert all(renewed(store, lease) for lease in leases[MANY:])


def test_R69_a_node_that_is_away_is_waited_for_once_and_not_for_each_lease(
    store: RedisStore, nodes: list[RedisServer], leases: list[Lease]
) -> None:
    started = time.monotonic()
    with stopped(nodes[0]):
        store.renew(leases, DAY)
    # Its pipeline, and one lease on its own: two tries, and a look for the nodes after each.
    assert time.monotonic() - started < MANY * TIMEOUT


def test_R69_lost_lease_is_told_beside_a_node_that_is_away(
    store: RedisStore, nodes: list[RedisServer], leases: list[Lease]
) -> None:
    ended = leases[-1]
    store.release(ended)
    with stopped(nodes[0]):
        held = store.renew(leases, DAY)
    assert held == set(leases) - {ended}


def test_R69_no_node_at_all_is_an_error(
    store: RedisStore, nodes: list[RedisServer], leases: list[Lease], renew: Renew
) -> None:
    with stopped(*nodes), pytest.raises(StoreError):
        renew(store, leases)


def test_R69_lease_whose_record_has_moved_to_another_node_is_renewed(
    store: RedisStore, nodes: list[RedisServer], leases: list[Lease]
) -> None:
    moved = leases[0]
    move(store, moved, nodes)

    assert store.renew(leases, DAY) == set(leases)

    assert renewed(store, moved)


def move(store: RedisStore, lease: Lease, nodes: list[RedisServer]) -> None:
    """Give the slot of a record, and the record, from the first node to the second."""
    slot, key = slot_of(store, lease.record_id), store._key(lease.record_id)
    with nodes[0].client() as source, nodes[1].client() as target:
        from_id: Any = source.execute_command("CLUSTER", "MYID")
        to_id: Any = target.execute_command("CLUSTER", "MYID")
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", from_id)
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", to_id)
        source.execute_command("MIGRATE", HOST, nodes[1].port, key, 0, 5000)
        for client in (target, source):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", to_id)
