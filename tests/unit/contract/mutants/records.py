"""Mutants whose records expire too early, too late, or are swept too soon."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from django_idempotency.records import ClaimRequest, Lease, Record, State
from tests.unit.contract.mutants.base import GAP, Mutant, in_flight

__all__: list[str] = []


class LeaseExpiresTheRecord(Mutant):
    """A record in progress expires with its lease, and the fingerprint is lost with it."""

    rule = "test_I6_record_outlives_its_lease"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        claimed = super().claim(request)
        if isinstance(claimed, Lease) and request.on_stale != "refuse":
            self.change(request.record_id, expires_at=claimed.lease_until)
        return claimed


class RetentionIsNotExtended(Mutant):
    """A record in progress expires with its retention, though an attempt may take longer."""

    rule = "test_claim_lasts_for_the_retention_and_for_the_longest_attempt"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        claimed = super().claim(request)
        if isinstance(claimed, Lease) and request.on_stale != "refuse":
            assert claimed.claimed_at is not None
            self.change(request.record_id, expires_at=claimed.claimed_at + request.retention)
        return claimed


class ExpiryIsLeftToTheSweep(Mutant):
    """A claim takes an expired record for a good one, as long as it has not been swept."""

    rule = "test_R74_expired_record_is_claimed_by_anything"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if (
            seen is not None
            and seen.expired
            and not self.is_won(replace(seen, expires_at=None), request)
        ):
            return seen
        return super().claim(request)


class ExpiryForgetsNothing(Mutant):
    """A claim of an expired record goes on where that one ended."""

    rule = "test_R74_expired_record_is_claimed_by_anything"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        claimed = super().claim(request)
        if seen is not None and seen.expired:
            self.change(request.record_id, created_at=seen.created_at, attempts=seen.attempts + 1)
        return claimed


class GetHidesTheExpiry(Mutant):
    """A look at an expired record does not say that it has expired."""

    rule = "test_R74_get_says_that_a_record_has_expired"

    def get(self, record_id: UUID) -> Record | None:
        record = super().get(record_id)
        if record is not None and record.expired:
            return replace(record, expires_at=record.now + timedelta(microseconds=1))
        return record


class ClaimIgnoresALiveLeaseBeyondTheExpiry(Mutant):
    """A claim takes a record for expired whose owner is still at it."""

    rule = "test_I9_live_lease_is_not_expired"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.expires_at is not None and seen.expires_at <= seen.now:
            self.change(request.record_id, state=State.RELEASED)
        return super().claim(request)


class CountIgnoresALiveLeaseBeyondTheExpiry(Mutant):
    """The count of expired records has those, too, whose owners are still at them."""

    rule = "test_I9_count_of_expired_records_leaves_out_the_live"

    def count_expired(self) -> int:
        with self.exclusively() as records:
            found = list(records.newest_first(None))
            return sum(x.expires_at is not None and x.expires_at <= records.now for x in found)


class SweepIgnoresALiveLeaseBeyondTheExpiry(Mutant):
    """The sweep deletes a record whose owner is still at it."""

    rule = "test_I9_R75_sweep_leaves_a_live_lease_beyond_the_expiry"

    def sweep(self, *, limit: int = 5000) -> int:
        with self._mutex:
            now = self._clock()
            expired = [
                record_id
                for record_id, record in self._records.items()
                if record.expires_at is not None and record.expires_at <= now
            ][:limit]
            for record_id in expired:
                del self._records[record_id]
            return len(expired)


class SweepAsksForNothing(Mutant):
    """The sweep deletes the oldest records, expired or not."""

    rule = "test_I9_sweep_leaves_what_has_not_expired"

    def sweep(self, *, limit: int = 5000) -> int:
        with self._mutex:
            swept = list(self._records)[:limit]
            for record_id in swept:
                del self._records[record_id]
            return len(swept)


class SweepTakesTwoSteps(Mutant):
    """The sweep selects and then deletes, whatever was claimed in between."""

    rule = "test_I9_R75_no_sweep_deletes_a_lease_that_is_claimed_meanwhile"

    def sweep(self, *, limit: int = 5000) -> int:
        now = self._clock()
        with self._mutex:
            expired = [
                record_id
                for record_id, record in self._records.items()
                if replace(record, now=now).expired
            ][:limit]
        if expired:
            time.sleep(GAP)
        return sum(self._records.pop(record_id, None) is not None for record_id in expired)


class SweepHasNoLimit(Mutant):
    """The sweep deletes all at once, in one long transaction."""

    rule = "test_sweep_takes_no_more_than_its_limit"

    def sweep(self, *, limit: int = 5000) -> int:
        return super().sweep()


class SweepDoesNothing(Mutant):
    """The sweep leaves everything."""

    rule = "test_I9_sweep_deletes_what_has_expired"

    def sweep(self, *, limit: int = 5000) -> int:
        return 0


class SweepLeavesTombstones(Mutant):
    """A key that has been swept is used up for ever."""

    rule = "test_R74_sweep_gives_expired_keys_no_trouble"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        if request.record_id in self.swept:
            return in_flight(request, self._clock())
        return super().claim(request)

    def sweep(self, *, limit: int = 5000) -> int:
        before = set(self._records)
        swept = super().sweep(limit=limit)
        self.swept = self.swept | (before - set(self._records))
        return swept

    swept: frozenset[UUID] = frozenset()
