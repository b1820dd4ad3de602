"""Mutants that do not know what became of a write, or what happened before it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.records import ClaimRequest, Lease, Proof, Record, State
from tests.unit.contract.mutants.base import Mutant

__all__: list[str] = []


class ResendDrawsAToken(Mutant):
    """A claim whose answer is lost is sent again under a new token."""

    rule = "test_R68_claim_whose_answer_is_lost_is_won_once"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        try:
            return super().claim(request)
        except StoreError:
            return super().claim(replace(request, token=keys.new_token()))


class ResendOfACoroutineDrawsAToken(Mutant):
    """A coroutine's claim whose answer is lost is sent again under a new token."""

    rule = "test_R68_claim_of_a_coroutine_whose_answer_is_lost_is_won_once"

    async def aclaim(self, request: ClaimRequest) -> Lease | Record:
        try:
            return await super().aclaim(request)
        except StoreError:
            return await super().aclaim(replace(request, token=keys.new_token()))


class ResendIsAnotherAttempt(Mutant):
    """A claim that is sent again counts as one more attempt."""

    rule = "test_R68_claim_whose_answer_is_lost_is_won_once"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        try:
            return super().claim(request)
        except StoreError:
            record = self.get(request.record_id)
            assert record is not None
            if record.token == request.token:
                self.change(request.record_id, attempts=record.attempts + 1)
            return super().claim(request)


class ClaimWithoutAnAnswerCountsAsWon(Mutant):
    """A claim whose answer is lost counts as won, whoever has the lease."""

    rule = "test_I1_I12_refused_claim_whose_answer_is_lost_stays_refused"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        try:
            return super().claim(request)
        except StoreError:
            record = self.get(request.record_id)
            assert record is not None
            return Lease(Proof(record.record_id, record.epoch, record.token), request)


class CompletionWithoutAnAnswerIsLate(Mutant):
    """A completion whose answer is lost is told that its lease was."""

    rule = "test_R68_completion_whose_answer_is_lost_is_kept"

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        try:
            return super().complete(lease, result, retention=retention)
        except StoreError:
            raise LeaseLost from None


class CompletionWithoutAnAnswerCountsAsMade(Mutant):
    """A completion whose answer is lost counts as made, even a late one."""

    rule = "test_R66_I7_late_completion_whose_answer_is_lost_is_refused"

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        try:
            return super().complete(lease, result, retention=retention)
        except StoreError:
            record = self.get(lease.record_id)
            assert record is not None
            return record.expires_at or record.now + retention


class EndingWithoutAnAnswerIsUndone(Mutant):
    """A failure or release whose answer is lost is taken back."""

    rule = "test_R68_ending_whose_answer_is_lost_is_made"

    def fail(self, lease: Lease, error: str) -> None:
        try:
            super().fail(lease, error)
        except StoreError:
            self.change(lease.record_id, state=State.IN_PROGRESS)

    def release(self, lease: Lease) -> None:
        try:
            super().release(lease)
        except StoreError:
            self.change(lease.record_id, state=State.IN_PROGRESS)


class RenewalWithoutAnAnswerHoldsNothing(Mutant):
    """A renewal whose answer is lost says that all leases are."""

    rule = "test_R69_renewal_whose_answer_is_lost_is_held"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        try:
            return super().renew(leases, duration)
        except StoreError:
            return set()


class ResolutionIsSentAgain(Mutant):
    """A resolution whose answer is lost is sent again, and meets its own epoch."""

    rule = "test_resolution_whose_answer_is_lost_was_made_once"

    def resolve(self, record_id: UUID, action: str, **more: Any) -> bool:
        try:
            return super().resolve(record_id, action, **more)
        except StoreError:
            return super().resolve(record_id, action, **more)


class ClaimForgetsWhatHappenedMeanwhile(Mutant):
    """A claim writes by what it has read, whatever has happened since."""

    rule = "test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        self.between()
        if seen is not None and self.is_won(seen, request):
            with self._mutex:
                self._records[request.record_id] = seen
        return super().claim(request)


class ClaimGivesUpWhatHasChanged(Mutant):
    """A claim is refused by a record that has changed since it was read, in whatever way."""

    rule = "test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        self.between()
        changed = self.get(request.record_id)
        if seen is None or changed is None or seen.state is changed.state:
            return super().claim(request)
        return changed


class ClaimGivesUpWhatWasSwept(Mutant):
    """A claim is refused by a record that has been swept since it was read."""

    rule = "test_R76_claim_of_a_record_that_is_swept_meanwhile"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        self.between()
        return seen if seen and self.get(request.record_id) is None else super().claim(request)


class SweepDeletesWhatItHasRead(Mutant):
    """A sweep deletes what had expired when it looked, whatever has happened since."""

    rule = "test_I9_R75_sweep_repeats_its_predicate_as_it_deletes"

    def sweep(self, *, limit: int = 5000) -> int:
        expired = [x for x in list(self._records) if (r := self.get(x)) is not None and r.expired]
        self.between()
        for record_id in expired[:limit]:
            self._records.pop(record_id, None)
        return len(expired[:limit])
