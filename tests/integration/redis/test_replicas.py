"""WAIT: a claim counts as won when enough replicas have it."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from django_idempotency import journal
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis.rows import claim_arguments
from django_idempotency.stores.redis.scripts import CLAIM
from tests.claims import HOUR, asked, found, lost, won
from tests.integration.redis.conftest import MOMENT, lapse, stopped, through
from tests.services import or_skip
from tests.services.processes import wait_until
from tests.services.redis import HOST, RedisServer


@pytest.fixture(scope="module")
def pair():
    """A primary and its replica, which has a write of ours; Redis 6.2 is quick to take one."""
    with ExitStack() as stack:
        primary = or_skip(lambda: stack.enter_context(RedisServer("redis6")))
        replica = stack.enter_context(RedisServer("redis6", replicaof=f"{HOST} {primary.port}"))
        with primary.client() as client:
            client.set("written", "before")
            wait_until(lambda: client.wait(1, 100) == 1, seconds=30, what="the replica")
        yield primary, replica


@pytest.fixture
def primary(pair):
    return pair[0]


@pytest.fixture
def replica(pair):
    return pair[1]


@pytest.fixture
def client(primary):
    with primary.client() as client:
        yield client


@pytest.fixture
def store(primary, make_store):
    """A store for claims that the replica is to have, be it slow."""
    return make_store(primary.url, wait_replicas=1, wait_timeout=20)


@pytest.fixture
def hasty(primary, make_store):
    """A store for claims that no replica will have."""
    return make_store(primary.url, wait_replicas=1, wait_timeout=1)


def test_claim_that_a_replica_has_is_won(store, replica, make_store):
    won(store.claim(asked(lease=MOMENT)))
    lapse(store)
    lease = won(store.claim(asked()))
    assert lease.takeover
    assert found(make_store(replica.url)).epoch == lease.fencing_token
    store.complete(lease, b"result", retention=HOUR)


def test_claim_that_no_replica_has_in_time_is_an_error_and_is_given_back(hasty, replica):
    started = time.monotonic()
    with stopped(replica), pytest.raises(StoreError, match="0 of the 1 replicas"):
        hasty.claim(asked())
    assert 0.9 < time.monotonic() - started < 10
    record = found(hasty)
    assert (record.state, record.fingerprint) == (State.RELEASED, None)


def test_I6_claim_after_a_failure_that_is_given_back_keeps_the_fingerprint(store, hasty, replica):
    store.fail(won(store.claim(asked())), "boom")
    with stopped(replica), pytest.raises(StoreError):
        hasty.claim(asked())
    record = found(store)
    assert (record.state, record.fingerprint is None) == (State.FAILED, False)


def test_S13_claim_of_a_held_record_that_is_given_back_does_not_end_the_hold(store, hasty, replica):
    for held in (True, False):
        lease = won(store.claim(asked(steps=True)))
        entry = journal.intent("charge") if held else journal.withdrawn("charge")
        store.note(lease, entry, duration=HOUR, held=held)
        store.fail(lease, "boom", held=held)
        with stopped(replica), pytest.raises(StoreError):
            hasty.claim(asked(steps=True))
        record = found(store)
        assert (record.state, record.error, record.held) == (State.FAILED, "not replicated", held)


# On the wire.


@pytest.fixture
def link(primary, proxy, client):
    """A proxy in front of the primary, which knows the script."""
    client.script_load(CLAIM.text)
    return proxy(HOST, primary.port)


def test_R68_claim_whose_answer_was_lost_is_not_taken_for_replicated(
    primary, replica, link, make_store
):
    url = through(primary.url, link)
    patient, hasty = (make_store(url, wait_replicas=1, wait_timeout=wait) for wait in (20, 1))
    link.cut_after(b"WAIT")
    won(patient.claim(asked("answer to WAIT")))  # which is asked for again
    assert link.fired.is_set()
    link.cut_after(CLAIM.sha.encode())
    with stopped(replica), pytest.raises(StoreError, match="0 of the 1 replicas"):
        hasty.claim(asked())
    assert link.fired.is_set()


def test_WAIT_comes_after_a_write_on_its_own_connection(primary, link, client, make_store):
    # That is all that it promises to know of. So the claim is sent again with it, and writes again.
    store = make_store(through(primary.url, link))
    lease = won(store.claim(asked()))
    assert store.renew([lease], HOUR) == {lease}  # which opens a connection
    before = client.info("persistence")["rdb_changes_since_last_save"]
    link.spoken.clear()

    key, arguments = store._key(lease.record_id), claim_arguments(lease.request)
    [is_won, *_], reached = store._clients.replicated(CLAIM, key, arguments, 1, 20)

    assert (is_won, reached) == (1, 1)
    assert client.info("persistence")["rdb_changes_since_last_save"] == before + 1
    assert link.round_trips == 1
    assert link.sent.index(CLAIM.sha.encode()) < link.sent.index(b"WAIT")


# What a primary does not know that has taken over between the claim and the wait.


@pytest.fixture
def meanwhile(monkeypatch, client, prefix):
    """Let the server forget, and do something more, before a claim of a store waits."""

    def do(store, action=lambda: None):
        replicated = store._clients.replicated

        def first(*arguments):
            assert client.delete(*client.keys(f"{prefix}*")) == 2  # the record, and the marker
            action()
            return replicated(*arguments)

        monkeypatch.setattr(store._clients, "replicated", first)

    return do


def test_I1_claim_that_was_lost_and_won_by_another_is_not_won(
    store, primary, make_store, meanwhile
):
    others = []
    meanwhile(store, lambda: others.append(won(make_store(primary.url).claim(asked()))))
    record = lost(store.claim(asked()))
    assert (record.state, record.token) == (State.IN_PROGRESS, others[0].token)
    store.complete(others[0], b"result", retention=HOUR)


@pytest.mark.parametrize("replicates", [True, False])
def test_I1_claim_that_was_lost_and_is_won_again_has_the_new_epoch(
    store, hasty, replica, meanwhile, replicates
):
    meanwhile(store if replicates else hasty)
    if replicates:
        store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    else:
        with stopped(replica), pytest.raises(StoreError, match="0 of the 1 replicas"):
            hasty.claim(asked())
        assert found(store).state is State.RELEASED
