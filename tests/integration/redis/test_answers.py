"""Servers that miss a call, do not answer, are away, or have no memory left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import redis

from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis_scripts import CLAIM, COMPLETE, Script
from tests.integration.redis.claims import HOUR, asked, found, lost, operation, record_id, won
from tests.integration.redis.conftest import MakeStore
from tests.services.processes import wait_until
from tests.services.proxy import Proxy

TIMEOUT = 0.3


@pytest.fixture
def link(proxied: tuple[Proxy, str]) -> Proxy:
    return proxied[0]


@pytest.fixture
def store(proxied: tuple[Proxy, str], make_store: MakeStore, client: redis.Redis) -> RedisStore:
    """A store behind a proxy; its prefix was looked at, and the server knows the claim."""
    client.script_load(CLAIM.text)
    store = make_store(proxied[1], timeout=TIMEOUT)
    won(store.claim(asked("before")))
    return store


@pytest.mark.parametrize("script", [CLAIM, COMPLETE], ids=["claim", "complete"])
def test_I5_work_runs_once_whichever_answer_is_lost(
    store: RedisStore, link: Proxy, client: redis.Redis, script: Script
) -> None:
    runs: list[object] = []
    client.script_load(script.text)
    link.cut_after(script.sha.encode())

    outcomes = [Engine(store).run(operation(), runs.append) for _ in range(2)]

    assert link.fired.is_set()
    assert (len(runs), [outcome.replayed for outcome in outcomes]) == (1, [False, True])


@pytest.mark.parametrize("how", ["before the server", "while nothing was sent"])
def test_call_whose_connection_is_cut_off_is_sent_again(
    store: RedisStore, link: Proxy, how: str
) -> None:
    if how == "before the server":
        link.cut_before(CLAIM.sha.encode())
    else:
        link.cut()
    won(store.claim(asked()))
    assert link.fired.is_set() is (how == "before the server")
    assert found(store).attempts == 1


def test_R61_server_that_does_not_answer_is_an_error_within_the_timeout(
    store: RedisStore, link: Proxy
) -> None:
    link.swallow()
    started = time.monotonic()
    with pytest.raises(StoreError) as raised:
        store.claim(asked())
    assert 0.8 * TIMEOUT < time.monotonic() - started < 4 * TIMEOUT
    assert isinstance(raised.value.__cause__, redis.TimeoutError)


def test_R69_server_that_does_not_answer_costs_one_renewal_and_no_lease(
    store: RedisStore, link: Proxy
) -> None:
    leases = {won(store.claim(asked(key))) for key in ("one", "two")}
    link.swallow()
    started = time.monotonic()
    with pytest.raises(StoreError):
        store.renew(leases, HOUR)
    assert time.monotonic() - started < 4 * TIMEOUT
    link.heal()
    assert store.renew(leases, HOUR) == leases


def test_R68_claim_that_was_not_answered_is_recognised_when_its_attempt_asks_again(
    store: RedisStore, link: Proxy, url: str, make_store: MakeStore
) -> None:
    request = asked()
    link.delay(0.8 * TIMEOUT)  # the claim gets there, and its answer comes too late
    with pytest.raises(StoreError):
        store.claim(request)
    link.heal()
    direct = make_store(url)
    wait_until(lambda: direct.get(request.record_id) is not None, seconds=5, what="the claim")
    lost(direct.claim(asked()))  # another attempt is refused
    assert won(direct.claim(request)).token == request.token


@pytest.mark.parametrize("call", ["claim", "renew", "browse"])
def test_server_that_is_not_there_is_an_error_at_once(
    proxied: tuple[Proxy, str], make_store: MakeStore, call: str
) -> None:
    link, url = proxied
    store = make_store(url, timeout=10)
    lease = won(store.claim(asked()))
    link.refuse()
    link.cut()
    calls: dict[str, Callable[[], object]] = {
        "claim": lambda: store.claim(asked()),
        "renew": lambda: store.renew([lease], HOUR),
        "browse": store.browse,
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


@pytest.mark.parametrize("version", ["valkey9", "redis6"])
@pytest.mark.parametrize("ending", [State.COMPLETED, State.FAILED, State.RELEASED])
def test_server_whose_memory_is_full_takes_what_running_work_has_to_say_and_no_new_key(
    store: RedisStore, memory_full: Callable[[], object], ending: State
) -> None:
    lease = won(store.claim(asked()))
    memory_full()

    with pytest.raises(StoreError):
        store.claim(asked("new"))

    assert store.get(record_id("new")) is None
    assert store.renew([lease], HOUR) == {lease}
    if ending is State.COMPLETED:
        store.complete(lease, b"result", retention=HOUR)
    else:
        store.fail(lease, "boom") if ending is State.FAILED else store.release(lease)
    assert found(store).state is ending
