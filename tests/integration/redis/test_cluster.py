"""A cluster: records on many nodes, one that is away, and forks beside its client."""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from datetime import timedelta

import pytest

from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from tests.claims import DAY, HOUR, asked, found, record_id, won
from tests.integration.redis.conftest import stopped, whole_life
from tests.services import or_skip
from tests.services.forks import held, in_child
from tests.services.processes import wait_until
from tests.services.redis import HOST, RedisServer

SLOTS = 16_384
#: The nodes give none of them up that a test has stopped.
CLUSTER = {"cluster_enabled": "yes", "cluster_node_timeout": "60000"}
#: How long a store waits for the node that is away.
TIMEOUT = 2
#: Leases on each node.
MANY = 20


@pytest.fixture(scope="module")
def nodes():
    """Two primaries, the first with the lower slots; it takes two seconds to be ready."""
    half = SLOTS // 2
    with ExitStack() as stack:
        started = or_skip(lambda: [stack.enter_context(RedisServer(**CLUSTER)) for _ in range(2)])
        one, other = (stack.enter_context(node.client()) for node in started)
        one.execute_command("CLUSTER", "ADDSLOTS", *range(half))
        other.execute_command("CLUSTER", "ADDSLOTS", *range(half, SLOTS))
        one.execute_command("CLUSTER", "MEET", HOST, started[1].port)
        wait_until(lambda: is_ready(one) and is_ready(other), seconds=60, what="the cluster")
        yield started


def is_ready(client):
    information = client.execute_command("CLUSTER INFO")
    return information["cluster_state"] == "ok" and information["cluster_known_nodes"] == "2"


@pytest.fixture
def store(nodes, make_store):
    return make_store(nodes[0].url, cluster=True)


def test_cluster(nodes, store, prefix):
    whole_life(store)
    for node in nodes:
        with node.client() as client:
            assert len(client.keys(f"{prefix}*")) > 3


def test_nodes_that_have_forgotten_the_scripts_are_told_them(nodes, store):
    leases = [won(store.claim(asked(f"key {number}"))) for number in range(20)]
    for node in nodes:
        with node.client() as client:
            client.script_flush()
    assert store.renew(leases, HOUR) == set(leases)


def test_claim_without_the_replicas_to_wait_for_is_given_back(nodes, make_store):
    store = make_store(nodes[0].url, cluster=True, wait_replicas=1, wait_timeout=0.05)
    with pytest.raises(StoreError, match="0 of the 1 replicas"):
        store.claim(asked())
    assert found(store).state is State.RELEASED


def test_cursor_of_a_node_that_is_no_more_is_refused(store):
    with pytest.raises(ValueError, match="not part of the cluster"):
        store.browse(cursor="10.0.0.1:7000/17/")


# Renewals: one node that is away does not keep the others' leases from them.


@pytest.fixture
def impatient(nodes, make_store):
    return make_store(nodes[0].url, cluster=True, timeout=TIMEOUT)


@pytest.fixture
def leases(store):
    """Leases of an hour: so many on the first node, and then as many on the second."""
    names = [f"key {number}" for number in range(100)]
    first = [name for name in names if slot_of(store, record_id(name)) < SLOTS // 2]
    second = [name for name in names if name not in first]
    return [won(store.claim(asked(name, lease=HOUR))) for name in first[:MANY] + second[:MANY]]


def test_R69_other_nodes_leases_are_renewed_and_the_one_is_waited_for_once(
    store, impatient, nodes, leases
):
    ended = leases.pop()
    impatient.release(ended)
    started = time.monotonic()

    with stopped(nodes[0]):
        held = impatient.renew([*leases, ended], DAY)

    # Its pipeline, and one lease on its own: two tries, and a look for the nodes after each.
    assert time.monotonic() - started < MANY * TIMEOUT
    assert held == set(leases)
    # What the first node has not answered it may still have done when it goes on.
    assert all(is_renewed(store, lease) for lease in leases[MANY:])


def test_R69_no_node_at_all_is_an_error(impatient, nodes, leases):
    with stopped(*nodes), pytest.raises(StoreError):
        impatient.renew(leases, DAY)


def test_R69_lease_whose_record_has_moved_to_another_node_is_renewed(impatient, nodes, leases):
    slot = slot_of(impatient, leases[0].record_id)
    with nodes[0].client() as source, nodes[1].client() as target:
        from_id, to_id = (client.execute_command("CLUSTER", "MYID") for client in (source, target))
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", from_id)
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", to_id)
        # With what another test has left in the slot, or the node would not give it away.
        names = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        source.execute_command("MIGRATE", HOST, nodes[1].port, "", 0, 5000, "KEYS", *names)
        for client in (target, source):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", to_id)
    assert impatient.renew(leases, DAY) == set(leases)
    assert is_renewed(impatient, leases[0])


def slot_of(store, identifier):
    return int(store._clients._connected().keyslot(store._key(identifier)))


def is_renewed(store, lease):
    """Whether a lease of an hour has become one of a day."""
    record = found(store, lease.request.key)
    return record.lease_until - record.now > timedelta(hours=2)


# Forks.


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_does_not_wait_for_a_thread_that_connects_or_looks_for_the_nodes(store):
    with held(store._clients._mutex):
        assert in_child(lambda: won(store.claim(asked("connects")))) == 0

    lease = won(store.claim(asked()))
    client = store._clients._client
    inner = vars(client.nodes_manager)  # which of them there are differs by version
    mutexes = [client._lock, *(inner[n] for n in ("_lock", "_initialization_lock") if n in inner)]
    before = id(client)
    del client, inner

    def child():
        gc.collect()
        own = won(store.claim(asked("child")))
        assert store.renew([own, lease], HOUR) == {own, lease}
        assert store.check() == []

    with held(*mutexes):
        assert in_child(child) == 0
    assert id(store._clients._client) == before
    store.complete(lease, b"result", retention=HOUR)
