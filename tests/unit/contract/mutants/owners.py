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

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        return super().complete(self.owners(lease), result, retention=retention)


class FailureIsNotFenced(Mutant):
    """A failure asks for no proof."""

    rule = "test_R67_I7_late_failure_changes_nothing"

    def fail(self, lease: Lease, error: str) -> None:
        super().fail(self.owners(lease), error)


class ReleaseIsNotFenced(Mutant):
    """A release asks for no proof."""

    rule = "test_R67_I7_late_release_changes_nothing"

    def release(self, lease: Lease) -> None:
        super().release(self.owners(lease))


class ProofIsTheEpoch(Mutant):
    """The epoch alone is proof of ownership."""

    rule = "test_R68_proof_is_the_epoch_and_the_token"

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

    def owned(self, records: Records, lease: Lease) -> Record | None:
        record = records.get(lease.record_id)
        if record and (record.epoch, record.token) == (lease.fencing_token, lease.token):
            return record
        return None


class OwnersLoseTheirLeaseWithTime(Mutant):
    """An owner's write is refused once its lease has lapsed, though nobody took it over."""

    rule = "test_R68_owner_whose_lease_has_lapsed_still_ends_it"

    def owned(self, records: Records, lease: Lease) -> Record | None:
        record = super().owned(records, lease)
        return record if record is not None and record.live else None


# Completion.


class ResentCompletionIsRefused(Mutant):
    """A completion that is sent again, because its answer was lost, is told that it lost."""

    rule = "test_R68_completion_whose_answer_was_lost_succeeds_again"

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

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        try:
            return super().complete(lease, result, retention=retention)
        except LeaseLost as lost:
            raise LeaseLost from lost


class AnothersRecordIsGone(Mutant):
    """A completion that was superseded says that the record is gone."""

    rule = "test_R66_I7_late_completion_is_refused"

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        try:
            return super().complete(lease, result, retention=retention)
        except LeaseLost as lost:
            raise LeaseLost(gone=True) from lost


class CompletionClaimsAGoneRecord(Mutant):
    """A completion that finds no record claims it anew."""

    rule = "test_R60_completion_of_a_record_that_is_gone_says_so"

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

    def fail(self, lease: Lease, error: str) -> None:
        super().fail(lease, error)
        record = self.get(lease.record_id)
        if record is not None and record.state is State.FAILED:
            self.change(lease.record_id, fingerprint=None)


class ReleaseKeepsTheFingerprint(Mutant):
    """A release keeps the fingerprint."""

    rule = "test_release_keeps_the_record_and_forgets_the_fingerprint"

    def release(self, lease: Lease) -> None:
        before = self.get(lease.record_id)
        super().release(lease)
        if before is not None:
            self.change(lease.record_id, fingerprint=before.fingerprint)


class ReleaseDeletes(Mutant):
    """A release deletes the record, and with it the token by which a resend is known."""

    rule = "test_release_keeps_the_record_and_forgets_the_fingerprint"

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
