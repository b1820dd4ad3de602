"""Mutants whose claims are wrong."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from django_idempotency.records import ClaimRequest, Lease, Record, State
from tests.unit.contract.mutants.base import GAP, AbsentRecords, Mutant, in_flight

__all__: list[str] = []


class ClaimReadsThenWrites(Mutant):
    """A claim reads, decides, and then writes, whatever has happened in between."""

    rule = "test_R26_I1_one_of_many_threads_wins_each_key"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if self.is_won(seen, request):
            time.sleep(GAP)
            with self._mutex:
                if seen is None:
                    self._records.pop(request.record_id, None)
                else:
                    self._records[request.record_id] = seen
        return super().claim(request)


class ClaimComparesEpochAndTokenAlone(Mutant):
    """A claim takes over what has been completed, or renewed, since it read the record."""

    rule = "test_R67_I7_no_late_write_undoes_a_take_over"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and self.is_won(seen, request):
            time.sleep(GAP)
            with self._mutex:
                now = self._records[request.record_id]
                if (now.epoch, now.token) == (seen.epoch, seen.token):
                    self._records[request.record_id] = seen
        return super().claim(request)


class ClaimWaits(Mutant):
    """A claim waits for the owner instead of saying that there is one."""

    rule = "test_R53_refused_claim_does_not_wait"
    contract = {"at_once": 0.04}

    def claim(self, request: ClaimRequest) -> Lease | Record:
        claimed = super().claim(request)
        if isinstance(claimed, Record) and (claimed.lease_left or 0) > 3000:
            threading.Event().wait(0.05)  # it would be for the whole lease
        return claimed


class ClaimsQueue(Mutant):
    """A claim is refused while another one is under way, of whatever key."""

    rule = "test_R53_claims_of_different_keys_are_all_won"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        if not self.busy.acquire(blocking=False):
            return in_flight(request, self._clock())
        try:
            time.sleep(GAP / 10)
            return super().claim(request)
        finally:
            self.busy.release()


class CompletedIsClaimedAgain(Mutant):
    """A claim runs again what has been completed."""

    rule = "test_I3_I12_claim_of_a_completed_record_is_refused"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.state is State.COMPLETED and seen.token != request.token:
            self.change(request.record_id, state=State.RELEASED, fingerprint=None)
        return super().claim(request)


class FailedIsNeverClaimedAgain(Mutant):
    """A failed record stands against everybody."""

    rule = "test_claim_of_a_failed_record_is_won_by_the_same_fingerprint"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.state is State.FAILED and not seen.expired:
            return seen
        return super().claim(request)


class RefusedClaimLeavesSomething(Mutant):
    """A claim that is refused counts as an attempt."""

    rule = "test_I1_I12_claim_of_a_live_lease_is_refused"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        claimed = super().claim(request)
        if isinstance(claimed, Record) and claimed.live:
            self.change(request.record_id, attempts=claimed.attempts + 1)
        return claimed


class LeasesAreNeverTakenOver(Mutant):
    """A lapsed lease stands against everybody."""

    rule = "test_R66_lapsed_lease_is_taken_over_by_the_same_fingerprint"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.stale and not seen.expired:
            return seen
        return super().claim(request)


class TakeOverTellsNobody(Mutant):
    """A lease that was taken over looks like a new one."""

    rule = "test_R66_lapsed_lease_is_taken_over_by_the_same_fingerprint"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        claimed = super().claim(request)
        if isinstance(claimed, Lease):
            claimed.takeover = False
        return claimed


class LiveLeaseIsTakenOver(Mutant):
    """A claim takes over a lease that has not lapsed."""

    rule = "test_I1_I12_claim_of_a_live_lease_is_refused"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.live and seen.token != request.token:
            self.change(request.record_id, lease_until=seen.now)
        return super().claim(request)


class RefuseIsIgnored(Mutant):
    """A lapsed lease is taken over, though that was to be refused."""

    rule = "test_R71_lapsed_lease_is_not_taken_over_where_that_is_refused"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        claimed = super().claim(request)
        if isinstance(claimed, Record) and claimed.stale:
            return super().claim(replace(request, on_stale="take_over"))
        return claimed


class RefuseRefusesFailures(Mutant):
    """A claimant that takes nothing over does not claim what has failed either."""

    rule = "test_R71_refusing_take_overs_refuses_nothing_else"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if request.on_stale == "refuse" and seen is not None and seen.state is State.FAILED:
            return seen
        return super().claim(request)


class RefuseExpires(Mutant):
    """A record whose take-over is refused expires before anybody has decided."""

    rule = "test_R71_record_whose_take_over_is_refused_lasts_until_it_is_ended"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        claimed = super().claim(request)
        if isinstance(claimed, Lease) and request.on_stale == "refuse":
            assert claimed.claimed_at is not None
            self.change(request.record_id, expires_at=claimed.claimed_at + request.lifetime)
        return claimed


# What is kept.


class OperationIsForgotten(Mutant):
    """A record does not say what is being done."""

    rule = "test_won_claim_is_recorded"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        return super().claim(replace(request, operation=""))


class LeasesAreWholeSeconds(Mutant):
    """A lease lasts for whole seconds."""

    rule = "test_times_of_a_claim_are_the_stores_and_in_utc"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seconds = request.lease.total_seconds()
        if seconds > 1:
            request = replace(request, lease=request.lease // 1_000_000 * 1_000_000)
        return super().claim(request)


class TextIsTidied(Mutant):
    """Scopes, keys and operations lose the spaces around them."""

    rule = "test_R80_hostile_text_comes_back_as_it_was"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        return super().claim(
            replace(
                request,
                scope=request.scope.strip(),
                key=request.key.strip(),
                operation=request.operation.strip(),
            )
        )


class ScopesMeet(Mutant):
    """A record is found by its key alone, whoever's key it is."""

    rule = "test_I10_the_key_of_another_scope_is_another_record"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        for record in list(self._records.values()):
            if record.key == request.key:
                request = replace(request, record_id=record.record_id)
        return super().claim(request)


class DamageIsAbsence(Mutant):
    """A record that cannot be read is taken for none."""

    rule = "test_claim_of_a_damaged_record_is_an_error_and_never_a_lease"
    records_class = AbsentRecords
