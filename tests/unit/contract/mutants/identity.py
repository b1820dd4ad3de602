"""Mutants that mistake fingerprints, epochs and tokens."""

from __future__ import annotations

from dataclasses import replace

from django_idempotency.keys import new_token
from django_idempotency.records import ClaimRequest, Lease, Record, State
from django_idempotency.stores.base import ClaimAgain
from tests.unit.contract.mutants.base import Mutant

__all__: list[str] = []

# Fingerprints.


class TakeOverComparesNoFingerprint(Mutant):
    """A lapsed lease is taken over by another request."""

    rule = "test_R70_I11_lapsed_lease_is_not_taken_over_by_another_fingerprint"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.stale and seen.fingerprint is not None:
            request = replace(request, fingerprints=(*request.fingerprints, seen.fingerprint))
        return super().claim(request)


class FailedIsClaimedByAnything(Mutant):
    """A failed record is claimed by another request."""

    rule = "test_I11_I12_claim_of_a_failed_record_is_refused_to_another_fingerprint"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.state is State.FAILED and seen.fingerprint is not None:
            request = replace(request, fingerprints=(*request.fingerprints, seen.fingerprint))
        return super().claim(request)


class TakeOverReplacesTheFingerprint(Mutant):
    """A claim of a record that has a fingerprint stores the claimant's newest one."""

    rule = "test_I6_any_of_the_fingerprints_may_match_and_the_kept_one_stays"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        claimed = super().claim(request)
        if isinstance(claimed, Lease):
            self.change(request.record_id, fingerprint=request.fingerprint)
        return claimed


class OnlyTheNewestFingerprintIsCompared(Mutant):
    """A claim compares one fingerprint, so an upgrade turns retries into mismatches."""

    rule = "test_I6_any_of_the_fingerprints_may_match_and_the_kept_one_stays"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        return super().claim(replace(request, fingerprints=request.fingerprints[:1]))


class RefusedTokenStaysRefused(Mutant):
    """A claim that was refused is refused again, whatever fingerprints it has by then."""

    rule = "test_R47_I6_refused_claim_is_sent_once_more_with_the_stored_fingerprint"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and request.token in vars(self).setdefault("refused", set()):
            return seen
        claimed = super().claim(request)
        if isinstance(claimed, Record):
            vars(self).setdefault("refused", set()).add(request.token)
        return claimed


class OldestFingerprintIsKept(Mutant):
    """A claim stores the oldest fingerprint."""

    rule = "test_newest_fingerprint_is_kept"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        return super().claim(replace(request, fingerprints=request.fingerprints[::-1]))


# Epochs and tokens.


class EpochStandsStill(Mutant):
    """The epoch of a record is that of its first claim."""

    rule = "test_I2_epoch_grows_with_each_claim"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        claimed = super().claim(request)
        if isinstance(claimed, Record) or seen is None:
            return claimed
        self.change(request.record_id, epoch=seen.epoch)
        return Lease(
            replace(claimed.proof, epoch=seen.epoch),
            request,
            lease_until=claimed.lease_until,
            claimed_at=claimed.claimed_at,
            takeover=claimed.takeover,
        )


class EpochIsTheClock(Mutant):
    """The epoch is the clock, which may not have moved since the last claim."""

    rule = "test_I2_epoch_grows_faster_than_the_clock_if_need_be"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if self.is_won(seen, request) and seen is not None:
            self.change(request.record_id, epoch=0)
        return super().claim(request)


class EpochCountsClaims(Mutant):
    """The epoch counts the claims of a record, and begins again after a sweep."""

    rule = "test_I2_epoch_grows_over_a_sweep"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        claimed = super().claim(request)
        if isinstance(claimed, Record) or (seen is not None and seen.token == request.token):
            return claimed
        epoch = 1 if seen is None else seen.epoch + 1
        self.change(request.record_id, epoch=epoch)
        return Lease(
            replace(claimed.proof, epoch=epoch),
            request,
            lease_until=claimed.lease_until,
            claimed_at=claimed.claimed_at,
            takeover=claimed.takeover,
        )


class TokenIsTheStores(Mutant):
    """A claim draws a token of its own, so no resend of it is known."""

    rule = "test_I1_claim_of_a_new_key_is_won"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        return super().claim(replace(request, token=new_token()))


class TokenIsReused(Mutant):
    """A record keeps the token of its first claim."""

    rule = "test_R68_each_claim_has_its_own_token"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and self.is_won(seen, request):
            request = replace(request, token=seen.token)
        return super().claim(request)


class ResentClaimIsRefused(Mutant):
    """A claim that is sent again, because its answer was lost, meets itself."""

    rule = "test_R68_claim_whose_answer_was_lost_is_won_when_it_is_sent_again"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.live and seen.token == request.token:
            return seen
        return super().claim(request)


class ResentClaimIsAnother(Mutant):
    """A claim that is sent again is another claim: the first answer's lease is lost."""

    rule = "test_R68_claim_whose_answer_was_lost_is_won_when_it_is_sent_again"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.live and seen.token == request.token:
            self.change(request.record_id, state=State.RELEASED)
        return super().claim(request)


class EndedClaimIsAnError(Mutant):
    """A claim that arrives once more after its end is answered by an exception."""

    rule = "test_R68_claim_that_arrives_once_more_after_its_end_is_answered"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        is_late = seen is not None and seen.token == request.token
        if seen is not None and is_late and seen.state in (State.FAILED, State.RELEASED):
            raise ClaimAgain
        return super().claim(request)


class EndedClaimRunsAgain(Mutant):
    """A claim that arrives once more, after its attempt has completed, wins again."""

    rule = "test_R68_ended_attempt_wins_nothing_when_its_claim_arrives_once_more"

    def claim(self, request: ClaimRequest) -> Lease | Record:
        seen = self.get(request.record_id)
        if seen is not None and seen.state is State.COMPLETED and seen.token == request.token:
            self.change(request.record_id, state=State.RELEASED)
        return super().claim(request)
