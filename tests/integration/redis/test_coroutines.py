"""Coroutines: one client for each event loop, closed when its loop is shut down."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync

from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import HOUR, asked, record_id, won
from tests.integration.redis.conftest import MakeStore
from tests.services.processes import wait_until
from tests.services.proxy import Proxy

NAME = "coroutines"


@pytest.fixture
def named(url: str, make_store: MakeStore) -> RedisStore:
    """A store whose connections have a name, and are no more than three for a loop."""
    return make_store(url, client_name=NAME, max_connections=3)


def connections(client: redis.Redis) -> int:
    """How many connections of that name the server has."""
    return [connection["name"] for connection in client.client_list()].count(NAME)


def test_server_that_has_forgotten_the_scripts_is_told_them_again(
    store: RedisStore, client: redis.Redis
) -> None:
    client.script_flush()

    async def main() -> None:
        leases = [won(await store.aclaim(asked(key))) for key in ("one", "two")]
        client.script_flush()
        for lease in leases:
            await store.acomplete(lease, b"result", retention=HOUR)

    asyncio.run(main())


def test_more_coroutines_than_connections_wait_for_one(
    named: RedisStore, client: redis.Redis
) -> None:
    async def main() -> int:
        claims = (named.aclaim(asked(f"key {number}")) for number in range(200))
        assert all(isinstance(claimed, Lease) for claimed in await asyncio.gather(*claims))
        return connections(client)

    assert 1 <= asyncio.run(main()) <= 3


def through_django(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as Django runs an asynchronous view under WSGI."""

    async def view() -> None:
        await main

    async_to_sync(view)()


@pytest.mark.parametrize("run", [asyncio.run, through_django])
def test_every_loop_has_its_own_connections_and_closes_them(
    named: RedisStore, client: redis.Redis, run: Callable[[Any], object]
) -> None:
    seen = []

    async def main(key: str) -> None:
        await asyncio.gather(*(named.aclaim(asked(f"{key} {n}")) for n in range(5)))
        seen.append(connections(client))

    for number in range(2):
        run(main(f"loop {number}"))
        gc.collect()  # what is left open would be a ResourceWarning, and so an error, here
        wait_until(lambda: connections(client) == 0, seconds=5, what="the connections to end")
    assert all(1 <= count <= 3 for count in seen)
    assert named._clients._of_loops == {}


def test_loop_that_is_closed_without_a_shutdown_is_forgotten(store: RedisStore) -> None:
    async def close_early() -> None:
        await store.aclaim(asked())
        client, _ = store._clients._of_loops[asyncio.get_running_loop()]
        await client.aclose()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(close_early())
    loop.close()
    asyncio.run(store.aget(record_id()))
    assert store._clients._of_loops == {}


def test_cancelled_coroutine_leaves_a_connection_that_is_not_used_again(
    proxied: tuple[Proxy, str], make_store: MakeStore
) -> None:
    proxy, url = proxied
    store = make_store(url, max_connections=1)

    async def main() -> None:
        await store.aclaim(asked())
        proxy.delay(0.2)
        task = asyncio.ensure_future(store.aclaim(asked("cancelled")))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.heal()
        record = await store.aget(record_id())  # and not the answer to the claim
        assert record is not None
        assert record.key == "key"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("how", "cause"), [("refuse", redis.ConnectionError), ("swallow", redis.TimeoutError)]
)
def test_R61_server_that_does_not_answer_is_an_error(
    proxied: tuple[Proxy, str], make_store: MakeStore, how: str, cause: type[Exception]
) -> None:
    getattr(proxied[0], how)()
    store = make_store(proxied[1], timeout=0.3)
    with pytest.raises(StoreError) as raised:
        asyncio.run(store.aclaim(asked()))
    assert isinstance(raised.value.__cause__, cause)


def test_prefix_of_another_secret_is_refused(
    url: str, make_store: MakeStore, settings: Any
) -> None:
    won(asyncio.run(make_store(url).aclaim(asked())))
    settings.SECRET_KEY = "staging"
    with pytest.raises(StoreError, match=r"OPTIONS\['prefix'\]"):
        asyncio.run(make_store(url).aclaim(asked("another")))
