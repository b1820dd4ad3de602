"""The part of the store contract about time: how long records last, and the sweep."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import (
    ENDED,
    FINGERPRINT,
    HOUR,
    OTHER_FINGERPRINT,
    ContractBase,
    needs,
    unchanged,
)

DAY = timedelta(days=1)
endings = pytest.mark.parametrize("ending", ENDED)


class ExpiryRules(ContractBase):
    """How long a record lasts, what its end means, and what the sweep takes."""

    def is_about(self, time: datetime | None, expected: datetime) -> bool:
        """Whether `time` is what was expected, as far as the store's precision goes."""
        return time is not None and abs(time - expected) <= self.precision

    # expires_at.

    @pytest.mark.parametrize(
        ("retention", "max_duration", "lasts"),
        [(DAY, HOUR, DAY + DAY / 10), (HOUR, DAY, DAY + timedelta(minutes=5))],
        ids=["retention", "max_duration and lease"],
    )
    @pytest.mark.parametrize("before", ["absent", "lapsed", "failed", "released"])
    def test_claim_lasts_for_the_retention_and_for_the_longest_attempt(
        self,
        store: BaseStore,
        before: str,
        retention: timedelta,
        max_duration: timedelta,
        lasts: timedelta,
    ) -> None:
        request = self.asked() if before == "absent" else self.ended(store, before).request
        fields = {"retention": retention, "max_duration": max_duration}

        lease = self.won(store.claim(self.again(request, lease=timedelta(minutes=5), **fields)))

        record = self.record(store, lease)
        assert self.is_about(record.expires_at, record.updated_at + lasts)

    @pytest.mark.parametrize("retention", [HOUR, 3 * DAY], ids=["shorter", "longer"])
    @pytest.mark.parametrize("on_stale", ["take_over", "refuse"])
    def test_completed_record_lasts_for_the_retention(
        self, store: BaseStore, on_stale: str, retention: timedelta
    ) -> None:
        lease = self.live(store, retention=DAY, on_stale=on_stale)

        expires_at = store.complete(lease, b"result", retention=retention)

        record = self.record(store, lease)
        assert expires_at == record.expires_at
        assert self.is_about(expires_at, record.updated_at + retention)

    def test_R73_completed_record_lasts_for_the_retention_or_a_tenth_longer(
        self, store: BaseStore
    ) -> None:
        # The claim's expiry may stay, so that an index need not be written again.
        lease = self.live(store, retention=DAY)

        expires_at = store.complete(lease, b"result", retention=DAY)

        record = self.record(store, lease)
        assert expires_at == record.expires_at
        lasts = expires_at - record.updated_at
        assert DAY <= lasts <= DAY + DAY / 10 + self.precision

    def test_R69_renewal_does_not_prolong_the_record(self, store: BaseStore) -> None:
        lease = self.live(store, retention=DAY)
        before = self.record(store, lease)

        store.renew([lease], 2 * DAY)

        assert self.record(store, lease).expires_at == before.expires_at

    @pytest.mark.parametrize("before", ["absent", "failed"])
    def test_R71_record_whose_take_over_is_refused_lasts_until_it_is_ended(
        self, store: BaseStore, before: str
    ) -> None:
        first = self.asked() if before == "absent" else self.ended(store, before).request
        short = {"lease": self.moment, "retention": self.moment, "max_duration": timedelta(0)}
        request = self.again(first, on_stale="refuse", **short)
        lease = self.won(store.claim(request))
        self.lapse(store, lease)

        store.sweep()

        record = self.record(store, lease)
        assert (record.expires_at, record.expired, record.stale) == (None, False, True)
        assert record.error == ""

    @pytest.mark.parametrize("ending", ["failed", "released"])
    def test_R71_ended_record_lasts_no_longer_for_ever(self, store: BaseStore, ending: str) -> None:
        lease = self.ended(store, ending, on_stale="refuse", retention=DAY)

        record = self.record(store, lease)
        assert self.is_about(record.expires_at, record.updated_at + DAY)

    def test_I6_record_outlives_its_lease(self, store: BaseStore) -> None:
        lease = self.lapsed(store)

        record = self.record(store, lease)
        assert (record.state, record.fingerprint) == (State.IN_PROGRESS, FINGERPRINT)
        assert not record.expired

    # Expired, whether swept or not.

    @pytest.mark.parametrize("fingerprint", [FINGERPRINT, OTHER_FINGERPRINT], ids=["same", "other"])
    @endings
    def test_R74_expired_record_is_claimed_by_anything(
        self, store: BaseStore, ending: str, fingerprint: bytes
    ) -> None:
        first = self.expired(store, ending)
        request = self.again(
            first.request,
            fingerprints=(fingerprint,),
            operation="POST another",
            lease=HOUR,
            retention=DAY,
        )

        lease = self.won(store.claim(request))

        record = self.record(store, lease)
        assert (record.state, record.fingerprint) == (State.IN_PROGRESS, fingerprint)
        assert record.operation == "POST another"
        assert (record.attempts, record.result, record.error) == (1, None, "")
        assert record.created_at == record.updated_at
        assert not lease.takeover

    @endings
    def test_R74_get_says_that_a_record_has_expired(self, store: BaseStore, ending: str) -> None:
        lease = self.expired(store, ending)

        record = store.get(lease.record_id)

        assert record is None or record.expired

    def test_I9_live_lease_is_not_expired(self, store: BaseStore) -> None:
        lease = self.live_beyond_expiry(store)

        record = self.record(store, lease)
        assert not record.expired
        told = self.refused(store.claim(self.again(lease.request)))
        assert unchanged(record, told)

    def test_I9_R75_owner_beyond_the_expiry_still_completes(self, store: BaseStore) -> None:
        lease = self.live_beyond_expiry(store)

        expires_at = store.complete(lease, b"result", retention=HOUR)

        record = self.record(store, lease)
        assert (record.state, record.result) == (State.COMPLETED, b"result")
        assert self.is_about(expires_at, record.updated_at + HOUR)

    # The sweep.

    def swept(self, store: BaseStore) -> None:
        """Take away whatever others have left to be swept."""
        while store.sweep():
            pass

    def test_R74_sweep_gives_expired_keys_no_trouble(self, store: BaseStore) -> None:
        first = self.expired(store)

        store.sweep()

        assert store.sweep() == 0
        self.won(store.claim(self.again(first.request)))

    @needs("sweep")
    @endings
    def test_I9_sweep_deletes_what_has_expired(self, store: BaseStore, ending: str) -> None:
        self.swept(store)
        lease = self.expired(store, ending)

        assert store.sweep() == 1

        assert store.get(lease.record_id) is None

    @pytest.mark.parametrize("ending", ["live", *ENDED])
    def test_I9_sweep_leaves_what_has_not_expired(self, store: BaseStore, ending: str) -> None:
        self.swept(store)
        lease = self.live(store) if ending == "live" else self.ended(store, ending)
        before = self.record(store, lease)

        assert store.sweep() == 0

        assert unchanged(before, self.record(store, lease))

    def test_I9_R75_sweep_leaves_a_live_lease_beyond_the_expiry(self, store: BaseStore) -> None:
        self.swept(store)
        lease = self.live_beyond_expiry(store)
        before = self.record(store, lease)

        assert store.sweep() == 0

        assert unchanged(before, self.record(store, lease))

    @needs("sweep")
    def test_I9_count_of_expired_records_leaves_out_the_live(self, store: BaseStore) -> None:
        self.swept(store)
        self.live(store)
        self.ended(store, "completed")
        self.live_beyond_expiry(store)
        for ending in ("completed", "lapsed"):
            self.expired(store, ending)

        assert store.count_expired() in (2, None)

    @needs("sweep")
    def test_sweep_takes_no_more_than_its_limit(self, store: BaseStore) -> None:
        self.swept(store)
        leases = [self.live(store) for _ in range(5)]
        for lease in leases:
            store.complete(lease, b"result", retention=self.moment)
        self.expire(store, leases[-1])

        swept = [store.sweep(limit=2) for _ in range(4)]

        assert swept == [2, 2, 1, 0]

    @needs("sweep")
    def test_I2_epoch_grows_over_a_sweep(self, store: BaseStore) -> None:
        request = self.asked()
        for _ in range(20):  # so many claims that a count of them would not do
            store.release(self.won(store.claim(self.again(request))))
        first = self.won(store.claim(self.again(request)))
        store.complete(first, b"result", retention=self.moment)
        self.expire(store, first)
        self.swept(store)
        assert store.get(first.record_id) is None

        lease = self.won(store.claim(self.again(request)))

        assert lease.fencing_token > first.fencing_token
