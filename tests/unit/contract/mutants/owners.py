"""Mutants whose owners may do too much, or too little."""

from __future__ import annotations

from datetime import datetime, timedelta

from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.records import Lease, Record, State, as_duration
from django_idempotency.stores.exclusive import Records
from tests.unit.contract.mutants.base import Mutant

__all__: list[str] = []


class CompletionIsNotFenced(Mutant):
    """A completion asks for no proof: a late owner overwrites its successor's record."""

    rule = "test_R66_I7_late_completion_is_refused"
    also = (
        "test_R66_I7_late_completion_whose_answer_is_lost_is_refused",
        "test_R66_record_that_was_gone_and_claimed_is_anothers",
        "test_R67_I7_no_late_write_undoes_a_take_over",
        "test_R68_proof_is_the_epoch_and_the_token",
    )

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        return super().complete(self.owners(lease), result, retention=retention)


class FailureIsNotFenced(Mutant):
    """A failure asks for no proof."""

    rule = "test_R67_I7_late_failure_changes_nothing"
    also = (
        "test_R67_I7_no_late_write_undoes_a_take_over",
        "test_R68_proof_is_the_epoch_and_the_token",
    )

    def fail(self, lease: Lease, error: str) -> None:
        super().fail(self.owners(lease), error)


class ReleaseIsNotFenced(Mutant):
    """A release asks for no proof."""

    rule = "test_R67_I7_late_release_changes_nothing"
    also = (
        "test_R67_I7_no_late_write_undoes_a_take_over",
        "test_R68_proof_is_the_epoch_and_the_token",
    )

    def release(self, lease: Lease) -> None:
        super().release(self.owners(lease))


class ProofIsTheEpoch(Mutant):
    """The epoch alone is proof of ownership."""

    rule = "test_R68_proof_is_the_epoch_and_the_token"
    also = ("test_R66_record_that_was_gone_and_claimed_is_anothers",)

    def owned(self, records: Records, lease: Lease) -> Record | None:
        record = records.get(lease.record_id)
        if record and record.state is State.IN_PROGRESS and record.epoch == lease.fencing_token:
            return record
        return None


class ProofIsTheToken(Mutant):
    """The token alone is proof of ownership."""

    rule = "test_R68_proof_is_the_epoch_and_the_token"

    def owned(self, records: Records, lease: Lease) -> Record | None:
        record = records.get(lease.record_id)
        if record and record.state is State.IN_PROGRESS and record.token == lease.token:
            return record
        return None


class OwnersCompareEpochAndTokenAlone(Mutant):
    """An owner's write is not conditional on the state: a completed record fails afterwards."""

    rule = "test_I3_ended_lease_is_not_ended_otherwise"
    also = (
        "test_I7_lease_that_was_given_up_completes_nothing",
        "test_R68_completion_whose_answer_was_lost_succeeds_again",
        "test_R68_ended_lease_is_not_renewed",
        "test_R68_many_leases_are_renewed_and_those_still_held_are_told",
        "test_twin_of_complete_refuses_what_is_late",
        "test_twin_of_renew",
    )

    def owned(self, records: Records, lease: Lease) -> Record | None:
        record = records.get(lease.record_id)
        if record and (record.epoch, record.token) == (lease.fencing_token, lease.token):
            return record
        return None


class OwnersLoseTheirLeaseWithTime(Mutant):
    """An owner's write is refused once its lease has lapsed, though nobody took it over."""

    rule = "test_R68_owner_whose_lease_has_lapsed_still_ends_it"
    also = (
        "test_I9_R75_sweep_repeats_its_predicate_as_it_deletes",
        "test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes",
        "test_R69_lapsed_lease_that_nobody_took_is_renewed",
    )

    def owned(self, records: Records, lease: Lease) -> Record | None:
        record = super().owned(records, lease)
        return record if record is not None and record.live else None


# Completion.


class ResentCompletionIsRefused(Mutant):
    """A completion that is sent again, because its answer was lost, is told that it lost."""

    rule = "test_R68_completion_whose_answer_was_lost_succeeds_again"
    also = ("test_R68_completion_whose_answer_is_lost_is_kept",)

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        record = self.get(lease.record_id)
        if record is not None and record.state is State.COMPLETED:
            raise LeaseLost
        return super().complete(lease, result, retention=retention)


class ResentCompletionOverwrites(Mutant):
    """A completion that is sent again completes again."""

    rule = "test_R68_completion_whose_answer_was_lost_succeeds_again"

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        record = self.get(lease.record_id)
        if record is not None and record.state is State.COMPLETED and record.token == lease.token:
            self.change(lease.record_id, state=State.IN_PROGRESS)
        return super().complete(lease, result, retention=retention)


class CompletionForgetsTheFingerprint(Mutant):
    """A completion forgets the fingerprint, so every request with the key is replayed."""

    rule = "test_completion_is_recorded"

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        expires_at = super().complete(lease, result, retention=retention)
        self.change(lease.record_id, fingerprint=None)
        return expires_at


class EmptyResultIsNone(Mutant):
    """An empty result is kept as none."""

    rule = "test_I4_result_is_kept_byte_for_byte"
    also = ("test_R68_completion_whose_answer_was_lost_succeeds_again",)

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        expires_at = super().complete(lease, result, retention=retention)
        self.change(lease.record_id, result=result or None)
        return expires_at


class ResultIsText(Mutant):
    """A result goes through text."""

    rule = "test_I4_result_is_kept_byte_for_byte"

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        text = result.decode(errors="replace")
        return super().complete(lease, text.encode(), retention=retention)


class CompletionKeepsTheClaimsExpiry(Mutant):
    """A completed record expires when the claim said."""

    rule = "test_completed_record_lasts_for_the_retention"
    also = (
        "test_I9_R75_owner_beyond_the_expiry_still_completes",
        "test_I9_count_of_expired_records_leaves_out_the_live",
        "test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes",
        "test_duration_may_be_seconds",
    )

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        before = self.get(lease.record_id)
        expires_at = super().complete(lease, result, retention=retention)
        if before is None or before.expires_at is None:
            return expires_at
        self.change(lease.record_id, expires_at=before.expires_at)
        return before.expires_at


class CompletionLastsForHalf(Mutant):
    """A completed record lasts for half of its retention."""

    rule = "test_completed_record_lasts_for_nearly_the_retention_of_its_claim"
    also = (
        "test_I9_R75_owner_beyond_the_expiry_still_completes",
        "test_completed_record_lasts_for_the_retention",
        "test_duration_may_be_seconds",
    )

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        return super().complete(lease, result, retention=as_duration(retention) / 2)


class SecondsAreMilliseconds(Mutant):
    """A number is no number of seconds."""

    rule = "test_duration_may_be_seconds"

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        if isinstance(retention, int):
            retention = timedelta(milliseconds=retention)
        return super().complete(lease, result, retention=retention)


class AnythingIsADuration(Mutant):
    """What is no duration is none at all."""

    rule = "test_what_is_no_duration_is_told_and_changes_nothing"

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        if not isinstance(retention, (int, timedelta)):
            retention = timedelta(0)
        return super().complete(lease, result, retention=retention)


# Completion of a record that is gone.


class GoneRecordIsAnothers(Mutant):
    """A completion that finds no record says that another attempt took over."""

    rule = "test_R60_completion_of_a_record_that_is_gone_says_so"
    also = ("test_twin_of_complete_says_that_a_record_is_gone",)

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        try:
            return super().complete(lease, result, retention=retention)
        except LeaseLost as lost:
            raise LeaseLost from lost


class AnothersRecordIsGone(Mutant):
    """A completion that was superseded says that the record is gone."""

    rule = "test_R66_I7_late_completion_is_refused"
    also = ("test_R66_record_that_was_gone_and_claimed_is_anothers",)

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        try:
            return super().complete(lease, result, retention=retention)
        except LeaseLost as lost:
            raise LeaseLost(gone=True) from lost


class CompletionClaimsAGoneRecord(Mutant):
    """A completion that finds no record claims it anew."""

    rule = "test_R60_completion_of_a_record_that_is_gone_says_so"
    also = ("test_twin_of_complete_says_that_a_record_is_gone",)

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        if self.get(lease.record_id) is None:
            again = self.claim(lease.request)
            assert isinstance(again, Lease)
            return super().complete(again, result, retention=retention)
        return super().complete(lease, result, retention=retention)


class FailureClaimsAGoneRecord(Mutant):
    """A failure that finds no record writes it anew."""

    rule = "test_R67_other_writes_leave_a_record_gone"

    def fail(self, lease: Lease, error: str) -> None:
        if self.get(lease.record_id) is None:
            again = self.claim(lease.request)
            assert isinstance(again, Lease)
            super().fail(again, error)
        super().fail(lease, error)


class TwinOfCompleteForgetsWhatIsGone(Mutant):
    """The coroutine twin of a completion says that another took over a record that is gone."""

    rule = "test_twin_of_complete_says_that_a_record_is_gone"

    async def acomplete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        try:
            return await super().acomplete(lease, result, retention=retention)
        except LeaseLost as lost:
            raise LeaseLost from lost


# The other endings.


class LongErrorIsTooLong(Mutant):
    """A failure whose error is long cannot be written."""

    rule = "test_R80_long_and_hostile_error_is_kept_to_be_read"

    def fail(self, lease: Lease, error: str) -> None:
        if len(error) > 255:
            raise StoreError("The error is too long.")
        super().fail(lease, error)


class FailureForgetsTheFingerprint(Mutant):
    """A failure forgets the fingerprint, so another request may claim the key."""

    rule = "test_I6_failure_keeps_the_fingerprint"
    also = (
        "test_I11_I12_claim_of_a_failed_record_is_refused_to_another_fingerprint",
        "test_I11_none_of_the_fingerprints_matches",
        "test_I6_any_of_the_fingerprints_may_match_and_the_kept_one_stays",
        "test_R47_I6_refused_claim_is_sent_once_more_with_the_stored_fingerprint",
        "test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes",
        "test_operator_resolves_what_nobody_is_at",
    )

    def fail(self, lease: Lease, error: str) -> None:
        super().fail(lease, error)
        record = self.get(lease.record_id)
        if record is not None and record.state is State.FAILED:
            self.change(lease.record_id, fingerprint=None)


class ReleaseKeepsTheFingerprint(Mutant):
    """A release keeps the fingerprint."""

    rule = "test_release_keeps_the_record_and_forgets_the_fingerprint"
    also = (
        "test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes",
        "test_claim_of_a_released_record_is_won_by_anything",
    )

    def release(self, lease: Lease) -> None:
        before = self.get(lease.record_id)
        super().release(lease)
        if before is not None:
            self.change(lease.record_id, fingerprint=before.fingerprint)


class ReleaseDeletes(Mutant):
    """A release deletes the record, and with it the token by which a resend is known."""

    rule = "test_release_keeps_the_record_and_forgets_the_fingerprint"
    also = (
        "test_I2_epoch_grows_faster_than_the_clock_if_need_be",
        "test_I2_epoch_grows_with_each_claim",
        "test_I3_ended_lease_is_not_ended_otherwise",
        "test_I3_operator_makes_nothing_else_of_what_has_ended",
        "test_I7_lease_that_was_given_up_completes_nothing",
        "test_I9_sweep_deletes_what_has_expired",
        "test_I9_sweep_leaves_what_has_not_expired",
        "test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes",
        "test_R68_claim_that_arrives_once_more_after_its_end_is_answered",
        "test_R68_claim_whose_answer_is_lost_is_won_once",
        "test_R68_ended_lease_is_not_renewed",
        "test_R68_ending_whose_answer_is_lost_is_made",
        "test_R68_owner_whose_lease_has_lapsed_still_ends_it",
        "test_R71_ended_record_lasts_no_longer_for_ever",
        "test_browse_by_state",
        "test_claim_of_a_released_record_is_won_by_anything",
        "test_operator_expires_what_has_ended",
        "test_twin_of_release",
    )

    def release(self, lease: Lease) -> None:
        super().release(lease)
        record = self.get(lease.record_id)
        if record is not None and record.state is State.RELEASED and record.token == lease.token:
            del self._records[lease.record_id]


class FailureIsForEver(Mutant):
    """A record whose take-over is refused lasts for ever, also after it has failed."""

    rule = "test_R71_ended_record_lasts_no_longer_for_ever"

    def fail(self, lease: Lease, error: str) -> None:
        before = self.get(lease.record_id)
        super().fail(lease, error)
        if before is not None and before.expires_at is None:
            self.change(lease.record_id, expires_at=None)


class TwinOfCompleteLosesTheResult(Mutant):
    """The coroutine twin of a completion keeps no result."""

    rule = "test_twin_of_complete"

    async def acomplete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        return await super().acomplete(lease, b"", retention=retention)


class TwinOfFailReleases(Mutant):
    """The coroutine twin of one operation does another."""

    rule = "test_twin_of_fail"

    async def afail(self, lease: Lease, error: str) -> None:
        await self.arelease(lease)


class TwinOfReleaseFails(Mutant):
    """And the other way round."""

    rule = "test_twin_of_release"

    async def arelease(self, lease: Lease) -> None:
        await self.afail(lease, "released")
