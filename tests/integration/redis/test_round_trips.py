"""Round trips of each operation, counted on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import HOUR, asked, lost, record_id, won
from tests.integration.redis.conftest import MakeStore, through
from tests.integration.redis.wire import Wiretap


@pytest.fixture
def wire(version: str, url: str) -> Iterator[Wiretap]:
    parts = urlsplit(url)
    with Wiretap(parts.hostname or "", parts.port or 6379) as tap:
        yield tap


@pytest.fixture
def store(wire: Wiretap, url: str, make_store: MakeStore) -> RedisStore:
    """A store whose connection is open and whose scripts are known to the server."""
    store = make_store(through(url, wire))
    for ending in ("complete", "fail", "release"):
        lease = won(store.claim(asked(ending)))
        store.renew([lease], HOUR)
        if ending == "complete":
            store.complete(lease, b"result", retention=HOUR)
        elif ending == "fail":
            store.fail(lease, "boom")
        else:
            store.release(lease)
    store.resolve(record_id("fail"), "release", epoch=0, state=State.FAILED)
    store.get(record_id())
    wire.forget()
    return store


def test_B4_claim_of_a_new_key_is_one_round_trip(store: RedisStore, wire: Wiretap) -> None:
    won(store.claim(asked()))
    assert wire.round_trips == 1


def test_B4_claim_of_a_duplicate_is_one_round_trip(store: RedisStore, wire: Wiretap) -> None:
    record = lost(store.claim(asked("complete")))
    assert record.result == b"result"
    assert wire.round_trips == 1


def test_B4_completion_is_one_round_trip(store: RedisStore, wire: Wiretap) -> None:
    lease = won(store.claim(asked()))
    wire.forget()
    store.complete(lease, b"result", retention=HOUR)
    assert wire.round_trips == 1


@pytest.mark.parametrize("ending", ["fail", "release"])
def test_B4_other_endings_are_one_round_trip(store: RedisStore, wire: Wiretap, ending: str) -> None:
    lease = won(store.claim(asked()))
    wire.forget()
    store.fail(lease, "boom") if ending == "fail" else store.release(lease)
    assert wire.round_trips == 1


def test_B4_many_leases_are_renewed_in_one_round_trip(store: RedisStore, wire: Wiretap) -> None:
    leases = {won(store.claim(asked(f"key {number}"))) for number in range(20)}
    wire.forget()
    assert store.renew(leases, HOUR) == leases
    assert wire.round_trips == 1


def test_B4_a_look_and_a_resolution_are_one_round_trip_each(
    store: RedisStore, wire: Wiretap
) -> None:
    record = store.get(record_id("fail"))
    assert wire.round_trips == 1
    wire.forget()
    assert record is not None
    assert store.resolve(record.record_id, "release", epoch=record.epoch, state=record.state)
    assert wire.round_trips == 1


def test_scripts_are_sent_by_their_digest(store: RedisStore, wire: Wiretap) -> None:
    store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    assert wire.sent.count(b"EVALSHA") == 2
    assert b"redis.call" not in wire.sent


def test_a_sweep_asks_nothing(store: RedisStore, wire: Wiretap) -> None:
    assert store.sweep() == 0
    assert wire.sent == b""
