"""Mutants whose records expire too early, too late, or are swept too soon."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

from django_idempotency.leases import Lease
from django_idempotency.records import State
from tests.unit.contract.mutants.base import GAP, Mutant, mutant, placeholder


@mutant("test_I6_record_outlives_its_lease")
def lease_expires_the_record(store, claim, request):
    """A record in progress expires with its lease, and the fingerprint is lost with it."""
    claimed = claim(request)
    if isinstance(claimed, Lease) and request.on_stale != "refuse":
        store.change(request.record_id, expires_at=claimed.lease_until)
    return claimed


@mutant("test_claim_lasts_for_the_retention_and_for_the_longest_attempt")
def retention_is_not_extended(store, claim, request):
    """A record in progress expires with its retention, though an attempt may take longer."""
    claimed = claim(request)
    if isinstance(claimed, Lease) and request.on_stale != "refuse":
        store.change(request.record_id, expires_at=claimed.claimed_at + request.retention)
    return claimed


@mutant("test_R74_expired_record_is_claimed_by_anything")
def expiry_is_left_to_the_sweep(store, claim, request, seen):
    """A claim takes an expired record for a good one, as long as it has not been swept."""
    if (
        seen is not None
        and seen.expired
        and (not store.is_won(replace(seen, expires_at=None), request))
    ):
        return seen
    return claim(request)


@mutant("test_R74_expired_record_is_claimed_by_anything")
def expiry_forgets_nothing(store, claim, request, seen):
    """A claim of an expired record goes on where that one ended."""
    claimed = claim(request)
    if seen.expired:
        store.change(request.record_id, created_at=seen.created_at, attempts=seen.attempts + 1)
    return claimed


@mutant("test_R74_get_says_that_a_record_has_expired")
def get_hides_the_expiry(store, get, record_id):
    """A look at an expired record does not say that it has expired."""
    record = get(record_id)
    if record is not None and record.expired:
        return replace(record, expires_at=record.now + timedelta(microseconds=1))
    return record


@mutant("test_I9_live_lease_is_not_expired")
def claim_ignores_a_live_lease_beyond_the_expiry(store, claim, request, seen):
    """A claim takes a record for expired whose owner is still at it."""
    if seen.expires_at is not None and seen.expires_at <= seen.now:
        store.change(request.record_id, state=State.RELEASED)
    return claim(request)


@mutant("test_I9_count_of_expired_records_leaves_out_the_live")
def count_ignores_a_live_lease_beyond_the_expiry(store, count_expired):
    """The count of expired records has those, too, whose owners are still at them."""
    with store.exclusively() as records:
        found = list(records.newest_first(None))
        return sum(x.expires_at is not None and x.expires_at <= records.now for x in found)


@mutant("test_I9_R75_sweep_leaves_a_live_lease_beyond_the_expiry")
def sweep_ignores_a_live_lease_beyond_the_expiry(store, sweep, *, limit=5000):
    """The sweep deletes a record whose owner is still at it."""
    with store._mutex:
        now = store._clock()
        found = list(store._records.items())
        expired = [i for i, r in found if r.expires_at is not None and r.expires_at <= now][:limit]
        return store.drop(expired)


@mutant("test_I9_sweep_leaves_what_has_not_expired")
def sweep_asks_for_nothing(store, sweep, *, limit=5000):
    """The sweep deletes the oldest records, expired or not."""
    with store._mutex:
        swept = list(store._records)[:limit]
        return store.drop(swept)


@mutant("test_I9_R75_no_sweep_deletes_a_lease_that_is_claimed_meanwhile")
def sweep_takes_two_steps(store, sweep, *, limit=5000):
    """The sweep selects and then deletes, whatever was claimed in between."""
    now = store._clock()
    with store._mutex:
        found = list(store._records.items())
        expired = [i for i, r in found if replace(r, now=now).expired][:limit]
    if expired:
        time.sleep(GAP)
    return store.drop(expired)


@mutant("test_sweep_takes_no_more_than_its_limit")
def sweep_has_no_limit(store, sweep, *, limit=5000):
    """The sweep deletes all at once, in one long transaction."""
    return sweep()


@mutant("test_I9_sweep_deletes_what_has_expired")
def sweep_does_nothing(store, sweep, *, limit=5000):
    """The sweep leaves everything."""
    return 0


class SweepLeavesTombstones(Mutant):
    """A key that has been swept is used up for ever."""

    rule = "test_R74_sweep_gives_expired_keys_no_trouble"
    swept = frozenset()

    def claim(self, request):
        if request.record_id in self.swept:
            return placeholder(request, self._clock())
        return super().claim(request)

    def sweep(self, *, limit=5000):
        before = set(self._records)
        swept = super().sweep(limit=limit)
        self.swept = self.swept | before - set(self._records)
        return swept
