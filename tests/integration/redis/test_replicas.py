"""WAIT: a claim counts as won when enough replicas have it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis.rows import claim_arguments
from django_idempotency.stores.redis.scripts import CLAIM
from tests.integration.redis.claims import HOUR, MOMENT, asked, found, lapse, lost, operation, won
from tests.integration.redis.conftest import MakeStore, or_skip, through
from tests.integration.redis.wire import Wiretap
from tests.services.processes import wait_until
from tests.services.proxy import Proxy
from tests.services.redis import HOST, RedisServer

Pair = tuple[RedisServer, RedisServer]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary and its replica, which has a write of ours; Redis 6.2 is quick to take one."""
    with ExitStack() as stack:
        primary = or_skip(lambda: stack.enter_context(RedisServer("redis6")))
        replica = stack.enter_context(RedisServer("redis6", replicaof=f"{HOST} {primary.port}"))
        with primary.client() as client:
            client.set("written", "before")
            wait_until(lambda: client.wait(1, 100) == 1, seconds=10, what="the replica")
        yield primary, replica


@pytest.fixture
def primary(pair: Pair) -> RedisServer:
    return pair[0]


@pytest.fixture
def replica(pair: Pair) -> RedisServer:
    return pair[1]


@pytest.fixture
def store(primary: RedisServer, make_store: MakeStore) -> RedisStore:
    return make_store(primary.url, wait_replicas=1, wait_timeout=0.2)


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    """A server that takes what it is sent when it goes on."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_claim_that_a_replica_has_is_won(
    store: RedisStore, replica: RedisServer, make_store: MakeStore, way: str
) -> None:
    won(store.claim(asked(lease=MOMENT)))
    lapse(store)
    lease = won(store.claim(asked()) if way == "threads" else asyncio.run(store.aclaim(asked())))
    assert lease.takeover
    assert found(make_store(replica.url)).epoch == lease.fencing_token
    store.complete(lease, b"result", retention=HOUR)


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_claim_that_no_replica_has_in_time_is_an_error_and_is_given_back(
    store: RedisStore, replica: RedisServer, way: str
) -> None:
    started = time.monotonic()
    with stopped(replica), pytest.raises(StoreError, match="0 of the 1 replicas"):
        store.claim(asked()) if way == "threads" else asyncio.run(store.aclaim(asked()))
    assert 0.19 < time.monotonic() - started < 1
    record = found(store)
    assert (record.state, record.fingerprint) == (State.RELEASED, None)


def test_nothing_runs_without_the_replica(store: RedisStore, replica: RedisServer) -> None:
    with stopped(replica), pytest.raises(StoreError) as raised:
        Engine(store).run(operation(), lambda lease: pytest.fail("ran"))
    assert raised.value.at_claim


def test_I6_claim_after_a_failure_that_is_given_back_keeps_the_fingerprint(
    store: RedisStore, replica: RedisServer
) -> None:
    store.fail(won(store.claim(asked())), "boom")
    with stopped(replica), pytest.raises(StoreError):
        store.claim(asked())
    record = found(store)
    assert record.state is State.FAILED
    assert record.fingerprint is not None


def test_more_replicas_than_there_are_is_an_error(
    primary: RedisServer, make_store: MakeStore
) -> None:
    store = make_store(primary.url, wait_replicas=2, wait_timeout=0.1)
    with pytest.raises(StoreError, match="1 of the 2 replicas"):
        store.claim(asked())


# On the wire.


@pytest.fixture
def behind_a_proxy(
    primary: RedisServer, make_store: MakeStore, proxy: Callable[[str, int], Proxy]
) -> tuple[RedisStore, Proxy]:
    link = proxy(HOST, primary.port)
    with primary.client() as client:
        client.script_load(CLAIM.text)
    url = through(primary.url, link)
    return make_store(url, wait_replicas=1, wait_timeout=0.2, timeout=1), link


def test_R68_claim_whose_answer_was_lost_is_not_taken_for_replicated(
    behind_a_proxy: tuple[RedisStore, Proxy], replica: RedisServer
) -> None:
    store, link = behind_a_proxy
    link.cut_after(CLAIM.sha.encode())
    with stopped(replica), pytest.raises(StoreError, match="0 of the 1 replicas"):
        store.claim(asked())
    assert link.fired.is_set()


def test_lost_answer_to_WAIT_is_asked_for_again(behind_a_proxy: tuple[RedisStore, Proxy]) -> None:
    store, link = behind_a_proxy
    link.cut_after(b"WAIT")
    won(store.claim(asked()))
    assert link.fired.is_set()


def test_WAIT_comes_after_a_write_on_its_own_connection(
    primary: RedisServer, make_store: MakeStore
) -> None:
    # That is all that it promises to know of. So the claim is sent again with it, and writes again.
    with primary.client() as client, Wiretap(HOST, primary.port) as wire:
        store = make_store(through(primary.url, wire))
        lease = won(store.claim(asked()))
        before: Any = client.info("persistence")
        wire.forget()

        key, arguments = store._key(lease.record_id), claim_arguments(lease.request)
        [is_won, *_], reached = store._clients.replicated(CLAIM, key, arguments, 1, 0.5)

        assert (is_won, reached) == (1, 1)
        after: Any = client.info("persistence")
        writes = "rdb_changes_since_last_save"
        assert after[writes] == before[writes] + 1
        assert wire.round_trips == 1
        assert wire.sent.index(CLAIM.sha.encode()) < wire.sent.index(b"WAIT")


def test_B4_claim_with_replicas_takes_two_round_trips_and_a_duplicate_one(
    primary: RedisServer, make_store: MakeStore
) -> None:
    with Wiretap(HOST, primary.port) as wire:
        store = make_store(through(primary.url, wire), wait_replicas=1)
        store.claim(asked("before"))
        for trips in (2, 1):
            wire.forget()
            store.claim(asked())
            assert wire.round_trips == trips


# What a primary does not know that has taken over between the claim and the wait.


@pytest.fixture
def meanwhile(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], object]], None]:
    """Do something between a claim of `store` and its wait for replicas."""
    replicated = store._clients.replicated

    def do(action: Callable[[], object]) -> None:
        def first(*arguments: Any) -> Any:
            action()
            return replicated(*arguments)

        monkeypatch.setattr(store._clients, "replicated", first)

    return do


@pytest.fixture
def lose(primary: RedisServer, prefix: str) -> Callable[[], None]:
    def delete() -> None:
        with primary.client() as client:
            assert client.delete(*client.keys(f"{prefix}*")) == 2  # the record, and the marker

    return delete


def test_I1_claim_that_was_lost_and_won_by_another_is_not_won(
    store: RedisStore, primary: RedisServer, make_store: MakeStore, meanwhile: Any, lose: Any
) -> None:
    others: list[Lease] = []

    def take() -> None:
        lose()
        others.append(won(make_store(primary.url).claim(asked())))

    meanwhile(take)

    record = lost(store.claim(asked()))

    [other] = others
    assert (record.state, record.token) == (State.IN_PROGRESS, other.token)
    store.complete(other, b"result", retention=HOUR)


@pytest.mark.parametrize("replicates", [True, False])
def test_I1_claim_that_was_lost_and_is_won_again_has_the_new_epoch(
    store: RedisStore, replica: RedisServer, meanwhile: Any, lose: Any, replicates: bool
) -> None:
    meanwhile(lose)

    if replicates:
        lease = won(store.claim(asked()))
        store.complete(lease, b"result", retention=HOUR)
    else:
        with stopped(replica), pytest.raises(StoreError, match="0 of the 1 replicas"):
            store.claim(asked())
        assert found(store).state is State.RELEASED


def test_primary_that_does_not_know_the_script_is_told_it(
    store: RedisStore, primary: RedisServer, meanwhile: Any
) -> None:
    def forget() -> None:
        with primary.client() as client:
            client.script_flush()

    meanwhile(forget)
    won(store.claim(asked()))
