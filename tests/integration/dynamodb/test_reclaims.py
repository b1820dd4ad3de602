"""What the contract does not reach between a claim's calls, which for DynamoDB may be three."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.leases import Lease
from django_idempotency.stores.dynamodb.store import TRIES, DynamoDBStore
from django_idempotency.testing import FakeClock
from tests.integration.dynamodb.claims import (
    DAY,
    FINGERPRINT,
    HOUR,
    OTHER_FINGERPRINT,
    OTHERS,
    asked,
    lost,
    once,
    record_id,
    won,
)
from tests.integration.dynamodb.conftest import MakeStore


@pytest.fixture(params=["moto", "dynalite"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both servers: on dynalite there is a read between the two, too."""
    return str(request.param)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(make_store: MakeStore, clock: FakeClock) -> DynamoDBStore:
    return make_store(clock=clock, ttl=False)


def test_I2_expired_record_that_is_claimed_and_expires_again_meanwhile(
    store: DynamoDBStore, clock: FakeClock
) -> None:
    won(store.claim(asked(max_duration=HOUR, retention=HOUR)))
    clock.advance(DAY)
    past: dict[str, Any] = {"lease": -HOUR, "retention": -HOUR, "max_duration": -DAY}
    first: list[Lease] = []
    once(store, "put", lambda: first.append(won(store.claim(asked(**past)))))

    lease = won(store.claim(OTHERS))

    assert lease.fencing_token > first[0].fencing_token


def test_I1_failed_record_of_an_older_fingerprint_that_is_claimed_meanwhile(
    store: DynamoDBStore,
) -> None:
    """The first update fails, since it asks with the newest; the other comes before the second."""
    store.fail(won(store.claim(asked())), "boom")
    once(store, "update", lambda: once(store, "update", lambda: won(store.claim(asked()))))

    assert lost(store.claim(asked(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT)))).live


@pytest.mark.parametrize("kind", ["dynalite"])
def test_R76_record_that_is_swept_between_the_conflict_and_the_read(
    store: DynamoDBStore, clock: FakeClock
) -> None:
    store.complete(won(store.claim(asked())), b"old", retention=HOUR)
    clock.advance(DAY)
    once(store, "item", store.sweep)

    assert won(store.claim(OTHERS)).record_id == record_id()


@pytest.mark.parametrize("kind", ["dynalite"])
def test_R54_record_that_is_never_seen_is_not_looked_for_for_ever_and_counts_as_in_progress(
    store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    won(store.claim(asked()))
    looks: list[object] = []
    monkeypatch.setattr(store.table, "item", looks.append)

    record = lost(store.claim(OTHERS))

    assert (record.live, record.lease_left) == (True, None)
    assert len(looks) == TRIES
