"""Round trips of each operation, counted on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_idempotency.claims import Resolution
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis.scripts import COMPLETE, FAIL, LOOK, RELEASE, RENEW, RESOLVE
from tests.integration.redis.claims import HOUR, asked, lost, record_id, won
from tests.integration.redis.conftest import MakeStore, through
from tests.integration.redis.wire import Wiretap


@pytest.fixture
def store(wire: Wiretap, url: str, client: Any, make_store: MakeStore) -> RedisStore:
    """A store whose connection is open and whose scripts are known to the server."""
    store = make_store(through(url, wire))
    for script in (COMPLETE, FAIL, LOOK, RELEASE, RENEW, RESOLVE):
        client.script_load(script.text)
    store.complete(won(store.claim(asked("complete"))), b"result", retention=HOUR)
    wire.forget()
    return store


CALLS: dict[str, Callable[[RedisStore, Lease], object]] = {
    "claim of a duplicate": lambda store, lease: lost(store.claim(asked("complete"))),
    "completion": lambda store, lease: store.complete(lease, b"result", retention=HOUR),
    "failure": lambda store, lease: store.fail(lease, "boom"),
    "release": lambda store, lease: store.release(lease),
    "look": lambda store, lease: store.get(lease.record_id),
    "resolution": lambda store, lease: store.resolve(
        record_id("complete"), Resolution("expire", epoch=0, state=State.COMPLETED)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_B4_call_is_one_round_trip_by_the_scripts_digest(
    store: RedisStore, wire: Wiretap, name: str
) -> None:
    lease = won(store.claim(asked()))
    assert wire.round_trips == 1
    wire.forget()

    CALLS[name](store, lease)

    assert wire.round_trips == 1
    assert wire.sent.count(b"EVALSHA") == 1
    assert b"redis.call" not in wire.sent


def test_B4_many_leases_are_renewed_in_one_round_trip(store: RedisStore, wire: Wiretap) -> None:
    leases = {won(store.claim(asked(f"key {number}"))) for number in range(20)}
    wire.forget()
    assert store.renew(leases, HOUR) == leases
    assert wire.round_trips == 1


def test_a_sweep_asks_nothing(store: RedisStore, wire: Wiretap) -> None:
    assert store.sweep() == 0
    assert wire.sent == b""
