"""DynamoDB has no clock to ask: what clocks that differ do, within the margin and beyond it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress, LeaseLost
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.testing import FakeClock
from tests.integration.dynamodb.claims import HOUR, asked, found, lost, operation, won
from tests.integration.dynamodb.conftest import Options
from tests.integration.dynamodb.wire import Wire

MINUTE = timedelta(minutes=1)
TEN_MINUTES = 10 * MINUTE
SECOND = timedelta(seconds=1)


@pytest.fixture
def here() -> FakeClock:
    return FakeClock()


@pytest.fixture
def there(here: FakeClock) -> FakeClock:
    return FakeClock(here())


Stores = tuple[DynamoDBStore, DynamoDBStore]


@pytest.fixture
def stores(
    options: Options, here: FakeClock, there: FakeClock
) -> tuple[DynamoDBStore, DynamoDBStore]:
    """Two processes with a clock each, on one table, with the margin of 5 s."""
    shared = options()
    return DynamoDBStore(**shared, clock=here), DynamoDBStore(**shared, clock=there)


class TestWithinTheMargin:
    @pytest.mark.parametrize("ahead", [0, 4.9])
    def test_R72_live_lease_is_not_taken_over(
        self, stores: Stores, there: FakeClock, ahead: float
    ) -> None:
        mine, theirs = stores
        won(mine.claim(asked(lease=MINUTE)))
        there.advance(MINUTE + ahead * SECOND)

        assert lost(theirs.claim(asked())).live

    def test_R72_lapsed_lease_is_taken_over_after_the_margin(
        self, stores: Stores, here: FakeClock
    ) -> None:
        store = stores[0]
        won(store.claim(asked(lease=MINUTE)))
        here.advance(MINUTE + 5 * SECOND)

        assert won(store.claim(asked())).takeover

    def test_R49_retry_after_counts_the_margin(self, stores: Stores, here: FakeClock) -> None:
        store = stores[0]
        won(store.claim(asked(lease=MINUTE)))
        here.advance(MINUTE)
        wire = Wire(store)

        with pytest.raises(InProgress) as busy:
            Engine(store).run(operation(), lambda lease: pytest.fail("ran"))

        assert (busy.value.retry_after, busy.value.stale) == (5, False)
        assert wire.taken() == ["UpdateItem"]  # the engine does not take it for a lapsed one

    def test_the_margin_is_an_option(self, options: Options, here: FakeClock) -> None:
        store = DynamoDBStore(**options(clock_skew=60), clock=here)
        won(store.claim(asked(lease=MINUTE)))
        here.advance(MINUTE + 59 * SECOND)
        lost(store.claim(asked()))
        here.advance(SECOND)

        assert won(store.claim(asked())).takeover

    def test_I9_expired_record_under_a_lease_in_its_margin_is_not_swept(
        self, options: Options, here: FakeClock
    ) -> None:
        store = DynamoDBStore(**options(ttl=False), clock=here)
        short: dict[str, Any] = {"lease": MINUTE, "retention": SECOND, "max_duration": timedelta(0)}
        won(store.claim(asked(**short)))
        here.advance(MINUTE + 4 * SECOND)
        assert store.sweep() == 0
        here.advance(SECOND)

        assert store.sweep() == 1


def test_R66_time_that_the_client_takes_to_be_built_is_not_taken_from_the_lease(
    options: Options, here: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DynamoDBStore(**options(), clock=here)
    config = store.table.client.config

    def slow() -> Any:
        here.advance(MINUTE)
        return config()

    monkeypatch.setattr(store.table.client, "config", slow)

    lease = won(store.claim(asked(lease=MINUTE)))

    assert lease.lease_until == here() + MINUTE


class TestTenMinutesAhead:
    """I1 does not cover it: a lease that still lives by its owner's clock is taken over."""

    def test_R66_owner_that_was_taken_over_early_cannot_complete(
        self, stores: Stores, there: FakeClock
    ) -> None:
        mine, theirs = stores
        there.advance(TEN_MINUTES)
        early = won(mine.claim(asked(lease=MINUTE)))

        later = won(theirs.claim(asked()))

        assert later.takeover
        assert later.fencing_token > early.fencing_token
        theirs.complete(later, b"theirs", retention=HOUR)
        with pytest.raises(LeaseLost):
            mine.complete(early, b"mine", retention=HOUR)
        assert found(mine).result == b"theirs"

    def test_R69_owner_that_renews_in_time_is_not_safe_either(
        self, stores: Stores, there: FakeClock
    ) -> None:
        mine, theirs = stores
        there.advance(TEN_MINUTES)
        lease = won(mine.claim(asked(lease=MINUTE)))
        assert mine.renew([lease], MINUTE) == {lease}
        won(theirs.claim(asked()))

        assert mine.renew([lease], MINUTE) == set()

    def test_lease_longer_than_the_difference_is_respected(
        self, stores: Stores, there: FakeClock
    ) -> None:
        mine, theirs = stores
        there.advance(TEN_MINUTES)
        won(mine.claim(asked(lease=TEN_MINUTES)))

        lost(theirs.claim(asked()))

    def test_R74_completed_record_expires_ten_minutes_early(
        self, stores: Stores, there: FakeClock
    ) -> None:
        mine, theirs = stores
        mine.complete(won(mine.claim(asked())), b"done", retention=HOUR)
        there.advance(HOUR - TEN_MINUTES)
        lost(theirs.claim(asked()))
        there.advance(TEN_MINUTES + SECOND)

        won(theirs.claim(asked()))


class TestTenMinutesBehind:
    def test_R72_takes_over_ten_minutes_late(
        self, stores: Stores, here: FakeClock, there: FakeClock
    ) -> None:
        mine, theirs = stores
        there.advance(-TEN_MINUTES)
        won(mine.claim(asked(lease=MINUTE)))
        for clock in (here, there):
            clock.advance(TEN_MINUTES)
        lost(theirs.claim(asked()))
        there.advance(MINUTE + 5 * SECOND)

        assert won(theirs.claim(asked())).takeover

    def test_I2_epoch_grows_nevertheless(self, stores: Stores, there: FakeClock) -> None:
        mine, theirs = stores
        there.advance(-TEN_MINUTES)
        first = won(mine.claim(asked()))
        mine.release(first)

        second = won(theirs.claim(asked()))

        assert second.fencing_token > first.fencing_token

    def test_I2_epoch_grows_over_an_expiry(self, stores: Stores, there: FakeClock) -> None:
        mine, theirs = stores
        first = won(mine.claim(asked()))
        mine.complete(first, b"done", retention=timedelta(0))
        there.advance(SECOND)

        assert won(theirs.claim(asked())).fencing_token > first.fencing_token
