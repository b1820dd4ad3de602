"""DynamoDB has no clock to ask: what clocks that differ do, within the margin and beyond it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_idempotency.claims import Resolution
from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress, LeaseLost
from django_idempotency.records import State
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.testing import FakeClock
from tests.integration.dynamodb.claims import (
    DAY,
    HOUR,
    OTHERS,
    asked,
    found,
    lost,
    once,
    operation,
    record_id,
    won,
)
from tests.integration.dynamodb.conftest import Options
from tests.integration.dynamodb.wire import Wire

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
TEN_MINUTES = 10 * MINUTE
#: A record that expires long before its lease lapses.
SHORT: dict[str, Any] = {"lease": MINUTE, "retention": SECOND, "max_duration": timedelta(0)}

Stores = tuple[DynamoDBStore, DynamoDBStore]


@pytest.fixture
def here() -> FakeClock:
    return FakeClock()


@pytest.fixture
def there(here: FakeClock) -> FakeClock:
    return FakeClock(here())


@pytest.fixture
def stores(options: Options, here: FakeClock, there: FakeClock) -> Stores:
    """Two processes with a clock each, on one table that is swept, with the margin of 5 s."""
    shared = options(ttl=False)
    return DynamoDBStore(**shared, clock=here), DynamoDBStore(**shared, clock=there)


@pytest.fixture
def store(stores: Stores) -> DynamoDBStore:
    return stores[0]


@pytest.mark.parametrize("ahead", [0, 4.9])
def test_R72_live_lease_is_not_taken_over_within_the_margin(
    stores: Stores, there: FakeClock, ahead: float
) -> None:
    mine, theirs = stores
    won(mine.claim(asked(lease=MINUTE)))
    there.advance(MINUTE + ahead * SECOND)

    assert lost(theirs.claim(asked())).live


@pytest.mark.parametrize("skew", [5, 60])
def test_R72_lapsed_lease_is_taken_over_after_the_margin(
    options: Options, here: FakeClock, skew: int
) -> None:
    store = DynamoDBStore(**options(clock_skew=skew), clock=here)
    won(store.claim(asked(lease=MINUTE)))
    here.advance(MINUTE + (skew - 1) * SECOND)
    lost(store.claim(asked()))
    here.advance(SECOND)

    assert won(store.claim(asked())).takeover


def test_R49_retry_after_counts_the_margin(store: DynamoDBStore, here: FakeClock) -> None:
    won(store.claim(asked(lease=MINUTE)))
    here.advance(MINUTE)
    wire = Wire(store)

    with pytest.raises(InProgress) as busy:
        Engine(store).run(operation(), lambda lease: pytest.fail("ran"))

    assert (busy.value.retry_after, busy.value.stale) == (5, False)
    assert wire.taken() == ["UpdateItem"]  # the engine does not take it for a lapsed one


def test_I9_expired_record_under_a_lease_in_its_margin_is_not_swept(
    store: DynamoDBStore, here: FakeClock
) -> None:
    won(store.claim(asked(**SHORT)))
    here.advance(MINUTE + 4 * SECOND)
    assert store.sweep() == 0
    here.advance(SECOND)

    assert store.sweep() == 1


@pytest.fixture
def renewed_behind(stores: Stores, here: FakeClock, there: FakeClock) -> Any:
    """
    Renew an expired record's lease, from a host that is 3 s behind.

    By the time here its lease has ended a second ago, and is in its margin.
    """
    theirs = stores[1]
    lease = won(theirs.claim(asked(**SHORT)))
    here.advance(DAY)
    there.advance(DAY - 3 * SECOND)
    return lambda: theirs.renew([lease], 2 * SECOND)


def test_I1_R72_expired_record_whose_lease_is_renewed_into_its_margin_is_not_claimed(
    store: DynamoDBStore, renewed_behind: Any
) -> None:
    once(store, "put", renewed_behind)

    assert lost(store.claim(OTHERS)).live


def test_I9_R75_sweep_leaves_a_lease_that_is_renewed_into_its_margin(
    store: DynamoDBStore, renewed_behind: Any
) -> None:
    once(store, "delete", renewed_behind)

    assert store.sweep() == 0
    assert found(store).live


@pytest.mark.parametrize("fields", [{"lease": MINUTE}, SHORT], ids=["unexpired", "expired"])
def test_operator_needs_force_for_a_lease_in_its_margin(
    store: DynamoDBStore, here: FakeClock, fields: dict[str, Any]
) -> None:
    lease = won(store.claim(asked(**fields)))
    here.advance(MINUTE + 4 * SECOND)
    seen: dict[str, Any] = {"epoch": lease.fencing_token, "state": State.IN_PROGRESS}

    assert not store.resolve(record_id(), Resolution("release", **seen))
    assert store.resolve(record_id(), Resolution("release", force=True, **seen))


def test_R66_time_that_the_client_takes_to_be_built_is_not_taken_from_the_lease(
    store: DynamoDBStore, here: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = store.table.client.config

    def slow() -> Any:
        here.advance(MINUTE)
        return config()

    monkeypatch.setattr(store.table.client, "config", slow)

    assert won(store.claim(asked(lease=MINUTE))).lease_until == here() + MINUTE


# Beyond the margin I1 does not hold; the fence does.


def test_R66_R69_owner_that_was_taken_over_early_can_neither_renew_nor_complete(
    stores: Stores, there: FakeClock
) -> None:
    mine, theirs = stores
    there.advance(TEN_MINUTES)
    early = won(mine.claim(asked(lease=MINUTE)))

    later = won(theirs.claim(asked()))

    assert (later.takeover, later.fencing_token > early.fencing_token) == (True, True)
    assert mine.renew([early], MINUTE) == set()
    theirs.complete(later, b"theirs", retention=HOUR)
    with pytest.raises(LeaseLost):
        mine.complete(early, b"mine", retention=HOUR)
    assert found(mine).result == b"theirs"


def test_I2_epoch_grows_on_a_host_that_is_behind(stores: Stores, there: FakeClock) -> None:
    mine, theirs = stores
    there.advance(-TEN_MINUTES)
    first = won(mine.claim(asked()))
    mine.release(first)

    assert won(theirs.claim(asked())).fencing_token > first.fencing_token
