"""Servers that miss a call, do not answer, are away, or have no memory left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis.scripts import CLAIM, COMPLETE
from tests.integration.redis.claims import HOUR, asked, found, lost, operation, record_id, won
from tests.integration.redis.conftest import MakeStore
from tests.integration.stories import ServerStory
from tests.services.processes import wait_until
from tests.services.proxy import Proxy


class TestServer(ServerStory):
    TIMEOUT = 0.3
    CLAIM = CLAIM.sha.encode()

    @pytest.fixture
    def link(self, proxied: tuple[Proxy, str]) -> Proxy:
        return proxied[0]

    @pytest.fixture
    def store(
        self, proxied: tuple[Proxy, str], make_store: MakeStore, client: redis.Redis
    ) -> RedisStore:
        """Its prefix was looked at, and the server knows the scripts."""
        for script in (CLAIM, COMPLETE):
            client.script_load(script.text)
        store = make_store(proxied[1], timeout=self.TIMEOUT)
        won(store.claim(asked("before")))
        return store

    def test_I5_work_runs_once_when_the_answer_to_its_completion_is_lost(
        self, store: RedisStore, link: Proxy
    ) -> None:
        link.cut_after(COMPLETE.sha.encode())

        outcome = Engine(store).run(operation(), lambda lease: "done")
        again = Engine(store).run(operation(), lambda lease: pytest.fail("ran"))

        assert link.fired.is_set()
        assert (outcome.stored, again.replayed) == (True, True)

    def test_R68_claim_whose_answer_comes_too_late_is_recognised_when_it_is_sent_again(
        self, store: RedisStore, link: Proxy, url: str, make_store: MakeStore
    ) -> None:
        request = asked()
        link.delay(0.8 * self.TIMEOUT)
        with pytest.raises(StoreError):
            store.claim(request)
        link.heal()
        direct = make_store(url)
        wait_until(lambda: direct.get(request.record_id) is not None, seconds=5, what="the claim")
        lost(direct.claim(asked()))  # another attempt is refused
        assert won(direct.claim(request)).token == request.token


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
