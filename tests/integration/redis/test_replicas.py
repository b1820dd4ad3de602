"""WAIT: a claim counts as won when enough replicas have it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress, StoreError
from django_idempotency.records import ClaimRequest, Lease, Record, State
from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis_rows import claim_arguments
from django_idempotency.stores.redis_scripts import CLAIM
from tests.integration.redis.claims import HOUR, MOMENT, asked, found, lapse, lost, operation, won
from tests.integration.redis.conftest import MakeStore, StartServer, through
from tests.integration.redis.wire import Wiretap
from tests.services.processes import wait_until
from tests.services.proxy import Proxy
from tests.services.redis import HOST, RedisServer

Claim = Callable[[RedisStore, ClaimRequest], Lease | Record]

WAYS: dict[str, Claim] = {
    "threads": lambda store, request: store.claim(request),
    "coroutines": lambda store, request: asyncio.run(store.aclaim(request)),
}


@pytest.fixture(params=WAYS)
def claim(request: pytest.FixtureRequest) -> Claim:
    return WAYS[request.param]


@pytest.fixture
def primary(request: pytest.FixtureRequest, start_server: StartServer) -> RedisServer:
    """A server of `version` if the test asks for it; Redis 6.2 is quicker to take a replica."""
    named = "version" in request.fixturenames
    return start_server(request.getfixturevalue("version") if named else "redis6")


@pytest.fixture
def replica(primary: RedisServer, start_server: StartServer) -> RedisServer:
    """A replica that has a write of ours."""
    server = start_server(primary.version, replicaof=f"{HOST} {primary.port}")
    with primary.client() as client:
        client.set("written", "before")
        wait_until(lambda: client.wait(1, 100) == 1, seconds=10, what="the replica")
    return server


@pytest.fixture
def store(primary: RedisServer, replica: RedisServer, make_store: MakeStore) -> RedisStore:
    return make_store(primary.url, wait_replicas=1, wait_timeout=0.2)


def test_claim_that_a_replica_has_is_won(
    version: str, store: RedisStore, replica: RedisServer, make_store: MakeStore, claim: Claim
) -> None:
    lease = won(claim(store, asked()))
    on_replica = make_store(replica.url)
    assert found(on_replica).epoch == lease.fencing_token
    store.complete(lease, b"result", retention=HOUR)


def test_claim_that_no_replica_has_is_an_error_and_is_given_back(
    version: str, store: RedisStore, replica: RedisServer, claim: Claim
) -> None:
    replica.kill()
    with pytest.raises(StoreError, match="0 of the 1 replicas"):
        claim(store, asked())
    record = found(store)
    assert (record.state, record.fingerprint) == (State.RELEASED, None)


def test_nothing_runs_without_the_replica(store: RedisStore, replica: RedisServer) -> None:
    replica.kill()
    with pytest.raises(StoreError) as raised:
        Engine(store).run(operation(), lambda lease: pytest.fail("ran"))
    assert raised.value.at_claim


def test_replica_that_is_stopped_is_waited_for_no_longer_than_the_timeout(
    store: RedisStore, replica: RedisServer
) -> None:
    os.kill(replica.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(StoreError):
            store.claim(asked())
        assert 0.19 < time.monotonic() - started < 1
    finally:
        os.kill(replica.pid, signal.SIGCONT)


def test_I6_claim_after_a_failure_that_is_given_back_keeps_the_fingerprint(
    store: RedisStore, replica: RedisServer
) -> None:
    store.fail(won(store.claim(asked())), "boom")
    replica.kill()
    with pytest.raises(StoreError):
        store.claim(asked())
    record = found(store)
    assert record.state is State.FAILED
    assert record.fingerprint is not None


def test_duplicate_does_not_wait_for_replicas(store: RedisStore, replica: RedisServer) -> None:
    store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    replica.kill()
    started = time.monotonic()
    assert lost(store.claim(asked())).result == b"result"
    assert time.monotonic() - started < 0.15


def test_more_replicas_than_there_are_is_an_error(
    primary: RedisServer, replica: RedisServer, make_store: MakeStore
) -> None:
    store = make_store(primary.url, wait_replicas=2, wait_timeout=0.1)
    with pytest.raises(StoreError, match="1 of the 2 replicas"):
        store.claim(asked())


@pytest.fixture
def behind_a_proxy(
    primary: RedisServer,
    replica: RedisServer,
    make_store: MakeStore,
    proxy: Callable[[str, int], Proxy],
) -> tuple[RedisStore, Proxy]:
    link = proxy(HOST, primary.port)
    url = through(primary.url, link)
    return make_store(url, wait_replicas=1, wait_timeout=0.2, timeout=1), link


def test_R68_claim_whose_answer_was_lost_is_not_taken_for_replicated(
    behind_a_proxy: tuple[RedisStore, Proxy], primary: RedisServer, replica: RedisServer
) -> None:
    store, link = behind_a_proxy
    with primary.client() as client:
        client.script_load(CLAIM.text)
    os.kill(replica.pid, signal.SIGSTOP)
    try:
        link.cut_after(CLAIM.sha.encode())
        with pytest.raises(StoreError, match="0 of the 1 replicas"):
            store.claim(asked())
        assert link.fired.is_set()
    finally:
        os.kill(replica.pid, signal.SIGCONT)


def test_lost_answer_to_WAIT_is_asked_for_again(behind_a_proxy: tuple[RedisStore, Proxy]) -> None:
    store, link = behind_a_proxy
    link.cut_after(b"WAIT")
    won(store.claim(asked()))
    assert link.fired.is_set()


def test_WAIT_comes_after_a_write_on_its_own_connection(
    version: str, primary: RedisServer, make_store: MakeStore
) -> None:
    # That is all that it promises to know of. So the claim is sent again with it, and writes again.
    with primary.client() as client, Wiretap(HOST, primary.port) as wire:
        store = make_store(through(primary.url, wire))
        lease = won(store.claim(asked()))
        before: Any = client.info("persistence")
        wire.forget()

        key, arguments = store._key(lease.record_id), claim_arguments(lease.request)
        [is_won, *_], reached = store._clients.replicated(CLAIM, key, arguments, 0, 0.1)

        assert (is_won, reached) == (1, 0)
        after: Any = client.info("persistence")
        writes = "rdb_changes_since_last_save"
        assert after[writes] == before[writes] + 1
        assert wire.round_trips == 1
        assert wire.sent.index(CLAIM.sha.encode()) < wire.sent.index(b"WAIT")


def test_B4_claim_with_replicas_takes_two_round_trips_and_a_duplicate_one(
    primary: RedisServer, replica: RedisServer, make_store: MakeStore
) -> None:
    with Wiretap(HOST, primary.port) as wire:
        store = make_store(through(primary.url, wire), wait_replicas=1)
        store.claim(asked("before"))
        wire.forget()
        store.claim(asked())
        assert wire.round_trips == 2
        wire.forget()
        store.claim(asked())
        assert wire.round_trips == 1


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


def lose(primary: RedisServer) -> None:
    with primary.client() as client:
        assert client.delete(*client.keys("test-*")) == 2  # the record, and the marker


def test_I1_claim_that_was_lost_and_won_by_another_is_not_won(
    store: RedisStore, primary: RedisServer, make_store: MakeStore, claim: Claim, meanwhile: Any
) -> None:
    others: list[Lease] = []

    def take() -> None:
        lose(primary)
        others.append(won(make_store(primary.url).claim(asked())))

    meanwhile(take)

    record = lost(claim(store, asked()))

    [other] = others
    assert (record.state, record.token) == (State.IN_PROGRESS, other.token)
    store.complete(other, b"result", retention=HOUR)


def test_I1_engine_runs_nothing_under_a_claim_that_another_has_won(
    store: RedisStore, primary: RedisServer, make_store: MakeStore, meanwhile: Any
) -> None:
    def take() -> None:
        lose(primary)
        won(make_store(primary.url).claim(asked()))

    meanwhile(take)
    with pytest.raises(InProgress):
        Engine(store).run(operation(), lambda lease: pytest.fail("ran"))


def test_I1_claim_that_was_lost_and_is_won_again_has_the_new_epoch(
    store: RedisStore, primary: RedisServer, claim: Claim, meanwhile: Any
) -> None:
    meanwhile(lambda: lose(primary))

    lease = won(claim(store, asked()))

    assert found(store).epoch == lease.fencing_token
    store.complete(lease, b"result", retention=HOUR)


def test_I1_claim_that_is_won_again_and_not_replicated_is_given_back(
    store: RedisStore, primary: RedisServer, replica: RedisServer, claim: Claim, meanwhile: Any
) -> None:
    def fail() -> None:
        lose(primary)
        replica.kill()

    meanwhile(fail)
    with pytest.raises(StoreError, match="0 of the 1 replicas"):
        claim(store, asked())
    assert found(store).state is State.RELEASED


def test_take_over_that_is_replicated_is_still_one(store: RedisStore, claim: Claim) -> None:
    won(store.claim(asked(lease=MOMENT)))
    lapse(store)
    assert won(claim(store, asked())).takeover


def test_primary_that_does_not_know_the_script_is_told_it(
    store: RedisStore, primary: RedisServer, claim: Claim, meanwhile: Any
) -> None:
    def forget() -> None:
        with primary.client() as client:
            client.script_flush()

    meanwhile(forget)
    won(claim(store, asked()))
