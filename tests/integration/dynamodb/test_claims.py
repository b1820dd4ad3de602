"""Clocks that differ, within the margin, and what may happen between the calls of a claim."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_idempotency.claims import Resolution
from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress
from django_idempotency.records import State
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.store import TRIES
from django_idempotency.testing import FakeClock
from tests.claims import (
    DAY,
    FINGERPRINT,
    HOUR,
    OTHER_FINGERPRINT,
    asked,
    found,
    lost,
    operation,
    record_id,
    won,
)
from tests.integration.dynamodb.conftest import OTHERS, once
from tests.integration.dynamodb.wire import Wire

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
#: A record that expires long before its lease lapses.
SHORT = {"lease": MINUTE, "retention": SECOND, "max_duration": timedelta(0)}


@pytest.fixture
def store(make_store, clock):
    """A store whose table is swept, with the margin of 5 s."""
    return make_store(ttl=False, clock=clock)


# DynamoDB has no clock to ask.


@pytest.mark.parametrize("skew", [5, 60])
def test_R72_live_lease_is_not_taken_over_within_the_margin_and_is_after_it(
    make_store, clock, skew
):
    store = make_store(clock_skew=skew, clock=clock)
    won(store.claim(asked(lease=MINUTE)))
    clock.advance(MINUTE + (skew - 0.1) * SECOND)
    assert lost(store.claim(asked())).live
    clock.advance(0.1 * SECOND)
    assert won(store.claim(asked())).takeover


def test_R49_retry_after_counts_the_margin(store, clock):
    won(store.claim(asked(lease=MINUTE)))
    clock.advance(MINUTE)
    wire = Wire(store)
    with pytest.raises(InProgress) as busy:
        Engine(store).run(operation(), lambda lease: pytest.fail("ran"))
    assert (busy.value.retry_after, busy.value.stale) == (5, False)
    assert wire.taken() == ["UpdateItem"]  # the engine does not take it for a lapsed one


@pytest.fixture
def renewed_behind(store, clock):
    """
    Renew an expired record's lease, from a host that is 3 s behind.

    By the time here its lease has ended a second ago, and is in its margin.
    """
    there = FakeClock(clock())
    url = store.table.client.ready().meta.endpoint_url
    theirs = DynamoDBStore(
        table_name=store.table.name, endpoint_url=url, ttl=False, clock=there, timeout=30
    )
    lease = won(theirs.claim(asked(**SHORT)))
    clock.advance(DAY)
    there.advance(DAY - 3 * SECOND)
    return lambda: theirs.renew([lease], 2 * SECOND)


def test_I1_R72_expired_record_whose_lease_is_renewed_into_its_margin_is_not_claimed(
    store, renewed_behind
):
    once(store, "put", renewed_behind)
    assert lost(store.claim(OTHERS)).live


def test_I9_R75_sweep_leaves_a_lease_that_is_renewed_into_its_margin(store, renewed_behind):
    once(store, "delete", renewed_behind)
    assert store.sweep() == 0
    assert found(store).live


@pytest.mark.parametrize("fields", [{"lease": MINUTE}, SHORT], ids=["unexpired", "expired"])
def test_operator_needs_force_for_a_lease_in_its_margin(store, clock, fields):
    lease = won(store.claim(asked(**fields)))
    clock.advance(MINUTE + 4 * SECOND)
    seen = {"epoch": lease.fencing_token, "state": State.IN_PROGRESS}
    assert not store.resolve(record_id(), Resolution("release", **seen))
    assert store.resolve(record_id(), Resolution("release", force=True, **seen))


def test_R66_time_that_the_client_takes_to_be_built_is_not_taken_from_the_lease(
    store, clock, monkeypatch
):
    build = store.table.client._client

    def slow():
        clock.advance(MINUTE)
        return build()

    monkeypatch.setattr(store.table.client, "_client", slow)

    assert won(store.claim(asked(lease=MINUTE))).lease_until == clock() + MINUTE


# What the contract does not reach between the calls of a claim, which may be three.

both_servers = pytest.mark.parametrize("kind", ["moto", "dynalite"])
on_dynalite = pytest.mark.parametrize("kind", ["dynalite"])  # with a read between the two


@both_servers
def test_I2_expired_record_that_is_claimed_and_expires_again_meanwhile(store, clock):
    won(store.claim(asked(max_duration=HOUR, retention=HOUR)))
    clock.advance(DAY)
    past = {"lease": -HOUR, "retention": -HOUR, "max_duration": -DAY}
    first = []
    once(store, "put", lambda: first.append(won(store.claim(asked(**past)))))
    lease = won(store.claim(OTHERS))
    assert lease.fencing_token > first[0].fencing_token


@both_servers
def test_I1_failed_record_of_an_older_fingerprint_that_is_claimed_meanwhile(store):
    """The first update fails, since it asks with the newest; the other comes before the second."""
    store.fail(won(store.claim(asked())), "boom")
    once(store, "update", lambda: once(store, "update", lambda: won(store.claim(asked()))))
    assert lost(store.claim(asked(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT)))).live


@on_dynalite
def test_R76_record_that_is_swept_between_the_conflict_and_the_read(store, clock):
    store.complete(won(store.claim(asked())), b"old", retention=HOUR)
    clock.advance(DAY)
    once(store, "item", store.sweep)
    assert won(store.claim(OTHERS)).record_id == record_id()


@on_dynalite
def test_R54_record_that_is_never_seen_is_not_looked_for_for_ever_and_counts_as_in_progress(
    store, monkeypatch
):
    won(store.claim(asked()))
    looks = []
    monkeypatch.setattr(store.table, "item", looks.append)
    record = lost(store.claim(OTHERS))
    assert (record.live, record.lease_left) == (True, None)
    assert len(looks) == TRIES
