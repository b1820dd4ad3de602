"""Answers that are lost on the way, and servers that do not answer: nothing runs twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import redis

from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import Lease, State
from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis_scripts import (
    CLAIM,
    COMPLETE,
    FAIL,
    LOOK,
    RELEASE,
    RENEW,
    RESOLVE,
    Script,
)
from tests.integration.redis.claims import (
    HOUR,
    MOMENT,
    asked,
    found,
    lapse,
    lost,
    operation,
    record_id,
    won,
)
from tests.integration.redis.conftest import MakeStore
from tests.services.processes import wait_until
from tests.services.proxy import Proxy

pytestmark = pytest.mark.usefixtures("version")

LoseAnswer = Callable[[Script], None]


@pytest.fixture
def store(proxied: tuple[Proxy, str], make_store: MakeStore, client: redis.Redis) -> RedisStore:
    """A store behind a proxy, whose scripts the server knows, whatever ran there before."""
    for script in (CLAIM, COMPLETE, FAIL, RELEASE, RENEW, RESOLVE, LOOK):
        client.script_load(script.text)
    return make_store(proxied[1], timeout=0.5)


@pytest.fixture
def lose_answer(proxied: tuple[Proxy, str], client: redis.Redis) -> LoseAnswer:
    """Cut the connection once, when the server has run the script and answered."""

    def lose(script: Script) -> None:
        client.script_load(script.text)
        proxied[0].cut_after(script.sha.encode())

    return lose


@pytest.fixture
def proxy_fired(proxied: tuple[Proxy, str]) -> Callable[[], bool]:
    return proxied[0].fired.is_set


# Each operation is sent again, and recognises what it has already done.


def test_R68_claimant_recognises_its_own_claim(
    store: RedisStore, lose_answer: LoseAnswer, proxy_fired: Callable[[], bool]
) -> None:
    lose_answer(CLAIM)
    lease = won(store.claim(asked()))
    assert proxy_fired()
    record = found(store)
    assert (record.attempts, record.epoch) == (1, lease.fencing_token)
    store.complete(lease, b"result", retention=HOUR)


def test_R68_so_does_a_coroutine(
    store: RedisStore, lose_answer: LoseAnswer, proxy_fired: Callable[[], bool]
) -> None:
    lose_answer(CLAIM)
    lease = won(asyncio.run(store.aclaim(asked())))
    assert proxy_fired()
    assert found(store).epoch == lease.fencing_token


def test_R68_so_does_one_who_takes_over(store: RedisStore, lose_answer: LoseAnswer) -> None:
    store.claim(asked(lease=MOMENT))
    lapse(store)
    lose_answer(CLAIM)
    lease = won(store.claim(asked()))
    record = found(store)
    assert (record.attempts, record.epoch) == (2, lease.fencing_token)


def test_completion_whose_answer_was_lost_has_succeeded(
    store: RedisStore, lose_answer: LoseAnswer
) -> None:
    lease = won(store.claim(asked()))
    lose_answer(COMPLETE)
    expires_at = store.complete(lease, b"result", retention=HOUR)
    record = found(store)
    assert (record.result, record.expires_at) == (b"result", expires_at)


@pytest.mark.parametrize("state", [State.FAILED, State.RELEASED])
def test_other_endings_whose_answer_was_lost_have_been_made(
    store: RedisStore, lose_answer: LoseAnswer, state: State
) -> None:
    lease = won(store.claim(asked()))
    lose_answer(FAIL if state is State.FAILED else RELEASE)
    store.fail(lease, "boom") if state is State.FAILED else store.release(lease)
    assert found(store).state is state


def test_renewals_whose_answer_was_lost_are_held(
    store: RedisStore, lose_answer: LoseAnswer
) -> None:
    leases = {won(store.claim(asked(key))) for key in ("one", "two")}
    lose_answer(RENEW)
    assert store.renew(leases, HOUR) == leases


def test_resolution_whose_answer_was_lost_was_done(
    store: RedisStore, lose_answer: LoseAnswer
) -> None:
    store.fail(won(store.claim(asked())), "boom")
    seen = found(store)
    lose_answer(RESOLVE)
    assert store.resolve(record_id(), "release", epoch=seen.epoch, state=seen.state)
    assert found(store).epoch == seen.epoch + 1


@pytest.mark.parametrize("script", [CLAIM, COMPLETE], ids=["claim", "complete"])
def test_I5_work_runs_once_whichever_answer_is_lost(
    store: RedisStore, lose_answer: LoseAnswer, proxy_fired: Callable[[], bool], script: Script
) -> None:
    runs = []

    def work(lease: Lease) -> str:
        runs.append(lease)
        return "done"

    lose_answer(script)
    for _ in range(2):
        outcome = Engine(store).run(operation(), work)
    assert proxy_fired()
    assert (outcome.result, outcome.replayed, len(runs)) == ("done", True, 1)


def test_request_that_is_cut_off_before_the_server_is_sent_again(
    store: RedisStore, proxied: tuple[Proxy, str], client: redis.Redis
) -> None:
    client.script_load(CLAIM.text)
    proxied[0].cut_before(CLAIM.sha.encode())
    won(store.claim(asked()))
    assert proxied[0].fired.is_set()
    assert found(store).attempts == 1


def test_connection_that_was_dropped_meanwhile_is_opened_again(
    store: RedisStore, proxied: tuple[Proxy, str]
) -> None:
    lease = won(store.claim(asked()))
    proxied[0].cut()
    store.complete(lease, b"result", retention=HOUR)


# No answer at all.


def test_server_that_does_not_answer_is_an_error_within_the_timeout(
    store: RedisStore, proxied: tuple[Proxy, str]
) -> None:
    store.get(record_id())
    proxied[0].swallow()
    started = time.monotonic()
    with pytest.raises(StoreError) as raised:
        store.claim(asked())
    assert 0.4 < time.monotonic() - started < 1.5
    assert isinstance(raised.value.__cause__, redis.TimeoutError)


def test_R69_server_that_does_not_answer_costs_one_renewal(
    store: RedisStore, proxied: tuple[Proxy, str]
) -> None:
    leases = {won(store.claim(asked(key))) for key in ("one", "two")}
    proxied[0].swallow()
    started = time.monotonic()
    with pytest.raises(StoreError):
        store.renew(leases, HOUR)
    assert time.monotonic() - started < 1.5
    proxied[0].heal()
    assert store.renew(leases, HOUR) == leases


def test_server_that_does_not_answer_a_coroutine_is_an_error_within_the_timeout(
    store: RedisStore, proxied: tuple[Proxy, str]
) -> None:
    proxied[0].swallow()
    started = time.monotonic()
    with pytest.raises(StoreError):
        asyncio.run(store.aclaim(asked()))
    assert 0.4 < time.monotonic() - started < 1.5


def test_R68_claim_that_was_not_answered_is_recognised_when_its_attempt_asks_again(
    store: RedisStore, proxied: tuple[Proxy, str], url: str, make_store: MakeStore
) -> None:
    request = asked()
    store.claim(asked("before"))  # the prefix is looked at once
    proxied[0].delay(0.3)  # the claim gets there, and its answer comes too late
    with pytest.raises(StoreError):
        store.claim(request)
    proxied[0].heal()
    direct = make_store(url)
    wait_until(lambda: direct.get(request.record_id) is not None, seconds=5, what="the claim")
    lost(direct.claim(asked()))  # another attempt is refused
    assert won(direct.claim(request)).token == request.token


@pytest.mark.parametrize("call", ["claim", "complete", "fail", "release", "renew", "get", "browse"])
def test_server_that_is_not_there_is_an_error_at_once(
    proxied: tuple[Proxy, str], make_store: MakeStore, call: str
) -> None:
    store = make_store(proxied[1], timeout=10)
    lease = won(store.claim(asked()))
    proxied[0].refuse()
    proxied[0].cut()
    calls: dict[str, Callable[[], object]] = {
        "claim": lambda: store.claim(asked()),
        "complete": lambda: store.complete(lease, b"result", retention=HOUR),
        "fail": lambda: store.fail(lease, "boom"),
        "release": lambda: store.release(lease),
        "renew": lambda: store.renew([lease], HOUR),
        "get": lambda: store.get(lease.record_id),
        "browse": lambda: store.browse(),
    }
    started = time.monotonic()
    with pytest.raises(StoreError) as raised:
        calls[call]()
    assert time.monotonic() - started < store.timeout
    assert isinstance(raised.value.__cause__, redis.ConnectionError)
    assert "key" not in str(raised.value)


@pytest.fixture
def memory_full(client: redis.Redis) -> Iterator[Callable[[], object]]:
    """Make the server's memory be full until the end of the test."""
    before = client.config_get("maxmemory")["maxmemory"]
    yield lambda: client.config_set("maxmemory", "1")
    client.config_set("maxmemory", before)


def test_server_whose_memory_is_full_refuses_new_keys(
    url: str, make_store: MakeStore, memory_full: Callable[[], object]
) -> None:
    store = make_store(url)
    memory_full()
    with pytest.raises(StoreError):
        store.claim(asked())
    assert store.get(record_id()) is None


@pytest.mark.parametrize("ending", [State.COMPLETED, State.FAILED, State.RELEASED])
def test_server_whose_memory_is_full_takes_what_running_work_has_to_say(
    url: str, make_store: MakeStore, memory_full: Callable[[], object], ending: State
) -> None:
    store = make_store(url)
    lease = won(store.claim(asked()))
    memory_full()
    assert store.renew([lease], HOUR) == {lease}
    if ending is State.COMPLETED:
        store.complete(lease, b"result", retention=HOUR)
    else:
        store.fail(lease, "boom") if ending is State.FAILED else store.release(lease)
    assert found(store).state is ending


def test_lease_that_could_not_be_renewed_for_want_of_a_server_is_not_lost(
    store: RedisStore, proxied: tuple[Proxy, str]
) -> None:
    lease = won(store.claim(asked()))
    proxied[0].refuse()
    proxied[0].cut()
    with pytest.raises(StoreError):
        store.renew([lease], HOUR)
    proxied[0].heal()
    assert store.renew([lease], timedelta(minutes=5)) == {lease}
