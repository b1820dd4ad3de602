"""The whole life of some records, for each place where a server may be."""

from __future__ import annotations

import asyncio
from typing import Any

from django_idempotency.claims import Resolution
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import HOUR, asked, found, lost, record_id, won


def whole_life(store: RedisStore) -> None:
    """Let records live through all that a store can do with them, and fail if one is lost."""
    keys = [f"key {number}" for number in range(20)]
    leases = {key: won(store.claim(asked(key))) for key in keys}
    assert store.renew(leases.values(), HOUR) == set(leases.values())
    for key in keys:
        assert lost(store.claim(asked(key))).state is State.IN_PROGRESS
        store.complete(leases[key], key.encode(), retention=HOUR)
        assert lost(store.claim(asked(key))).result == key.encode()
    ended = won(store.claim(asked("failed")))
    store.fail(ended, "boom")
    again = won(store.claim(asked("failed")))
    assert store.renew([ended, again], HOUR) == {again}
    store.release(again)
    seen = found(store, "failed")
    assert seen.state is State.RELEASED
    assert store.resolve(seen.record_id, Resolution("expire", epoch=seen.epoch, state=seen.state))
    assert sorted(browsed(store)) == sorted(record_id(key) for key in keys)
    assert store.check() == []
    asyncio.run(_of_coroutines(store))


def browsed(store: RedisStore) -> list[Any]:
    found, cursor = [], None
    while True:
        page = store.browse(limit=7, cursor=cursor)
        found += [record.record_id for record in page.records if not record.expired]
        cursor = page.cursor
        if cursor is None:
            return found


async def _of_coroutines(store: RedisStore) -> None:
    keys = [f"coroutine {number}" for number in range(20)]
    leases = [won(lease) for lease in await asyncio.gather(*(store.aclaim(asked(k)) for k in keys))]
    assert store.renew(leases, HOUR) == set(leases)
    for key, lease in zip(keys, leases, strict=True):
        await store.acomplete(lease, key.encode(), retention=HOUR)
        assert lost(await store.aclaim(asked(key))).result == key.encode()
    ended = won(await store.aclaim(asked("failed coroutine")))
    await store.afail(ended, "boom")
    again = won(await store.aclaim(asked("failed coroutine")))
    await store.arelease(again)
    record = await store.aget(again.record_id)
    assert record is not None
    assert record.state is State.RELEASED
