"""Round trips of each operation, counted on the wire."""

from __future__ import annotations

import pytest

from django_idempotency.claims import Resolution
from django_idempotency.records import State
from django_idempotency.stores.redis import scripts
from tests.claims import HOUR, asked, lost, record_id, won
from tests.integration.redis.conftest import through


@pytest.fixture
def store(link, url, client, make_store):
    """A store whose connection is open and whose scripts are known to the server."""
    store = make_store(through(url, link))
    for script in ("COMPLETE", "FAIL", "LOOK", "RELEASE", "RENEW", "RESOLVE"):
        client.script_load(getattr(scripts, script).text)
    store.complete(won(store.claim(asked("complete"))), b"result", retention=HOUR)
    link.spoken.clear()
    return store


CALLS = {
    "claim of a duplicate": lambda store, lease: lost(store.claim(asked("complete"))),
    "completion": lambda store, lease: store.complete(lease, b"result", retention=HOUR),
    "release": lambda store, lease: store.release(lease),
    "look": lambda store, lease: store.get(lease.record_id),
    "resolution": lambda store, lease: store.resolve(
        record_id("complete"), Resolution("expire", epoch=0, state=State.COMPLETED)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_B4_call_is_one_round_trip_by_the_scripts_digest(store, link, name):
    lease = won(store.claim(asked()))
    assert link.round_trips == 1
    link.spoken.clear()

    CALLS[name](store, lease)

    assert link.round_trips == 1
    assert link.sent.count(b"EVALSHA") == 1
    assert b"redis.call" not in link.sent


def test_B4_many_leases_are_renewed_in_one_round_trip_and_a_sweep_asks_nothing(store, link):
    leases = {won(store.claim(asked(f"key {number}"))) for number in range(20)}
    link.spoken.clear()
    assert store.renew(leases, HOUR) == leases
    assert store.sweep() == 0
    assert link.round_trips == 1


def test_marker_of_the_prefix_is_asked_for_once(link, url, make_store):
    store = make_store(through(url, link))
    won(store.claim(asked("first")))
    assert link.sent.count(b":owner") == 1
    won(store.claim(asked("second")))
    assert link.sent.count(b":owner") == 1
