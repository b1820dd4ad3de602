"""Mutants whose owners may do too much, or too little."""

from __future__ import annotations

from datetime import timedelta

from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.records import State, as_duration
from tests.unit.contract.mutants.base import mutant

RUNS = State.IN_PROGRESS


@mutant("test_R66_I7_late_completion_is_refused")
def completion_is_not_fenced(store, complete, lease, result, *, retention):
    """A completion asks for no proof: a late owner overwrites its successor's record."""
    return complete(store.owners(lease), result, retention=retention)


@mutant("test_R67_I7_late_failure_changes_nothing")
def failure_is_not_fenced(store, fail, lease, error):
    """A failure asks for no proof."""
    fail(store.owners(lease), error)


@mutant("test_R67_I7_late_release_changes_nothing")
def release_is_not_fenced(store, release, lease):
    """A release asks for no proof."""
    release(store.owners(lease))


@mutant("test_R68_proof_is_the_epoch_and_the_token")
def proof_is_the_epoch(store, owned, records, lease):
    """The epoch alone is proof of ownership."""
    found = records.get(lease.record_id)
    return found if found and found.state is RUNS and found.epoch == lease.fencing_token else None


@mutant("test_R68_proof_is_the_epoch_and_the_token")
def proof_is_the_token(store, owned, records, lease):
    """The token alone is proof of ownership."""
    found = records.get(lease.record_id)
    return found if found and found.state is RUNS and found.token == lease.token else None


@mutant("test_I3_ended_lease_is_not_ended_otherwise")
def owners_compare_epoch_and_token_alone(store, owned, records, lease):
    """An owner's write is not conditional on the state: a completed record fails afterwards."""
    found = records.get(lease.record_id)
    is_his = found and (found.epoch, found.token) == (lease.fencing_token, lease.token)
    return found if is_his else None


@mutant("test_R68_owner_whose_lease_has_lapsed_still_ends_it")
def owners_lose_their_lease_with_time(store, owned, records, lease):
    """An owner's write is refused once its lease has lapsed, though nobody took it over."""
    record = owned(records, lease)
    return record if record is not None and record.live else None


@mutant("test_R68_completion_whose_answer_was_lost_succeeds_again")
def resent_completion_is_refused(store, complete, lease, result, seen, *, retention):
    """A completion that is sent again, because its answer was lost, is told that it lost."""
    if seen.state is State.COMPLETED:
        raise LeaseLost
    return complete(lease, result, retention=retention)


@mutant("test_R68_completion_whose_answer_was_lost_succeeds_again")
def resent_completion_overwrites(store, complete, lease, result, seen, *, retention):
    """A completion that is sent again completes again."""
    if seen.state is State.COMPLETED and seen.token == lease.token:
        store.change(lease.record_id, state=State.IN_PROGRESS)
    return complete(lease, result, retention=retention)


@mutant("test_completion_is_recorded")
def completion_forgets_the_fingerprint(store, complete, lease, result, *, retention):
    """A completion forgets the fingerprint, so every request with the key is replayed."""
    expires_at = complete(lease, result, retention=retention)
    store.change(lease.record_id, fingerprint=None)
    return expires_at


@mutant("test_I4_result_is_kept_byte_for_byte")
def empty_result_is_none(store, complete, lease, result, *, retention):
    """An empty result is kept as none."""
    expires_at = complete(lease, result, retention=retention)
    store.change(lease.record_id, result=result or None)
    return expires_at


@mutant("test_I4_result_is_kept_byte_for_byte")
def result_is_text(store, complete, lease, result, *, retention):
    """A result goes through text."""
    return complete(lease, result.decode(errors="replace").encode(), retention=retention)


@mutant("test_completed_record_lasts_for_the_retention")
def completion_keeps_the_claims_expiry(store, complete, lease, result, seen, *, retention):
    """A completed record expires when the claim said."""
    expires_at = complete(lease, result, retention=retention)
    if seen.expires_at is None:
        return expires_at
    store.change(lease.record_id, expires_at=seen.expires_at)
    return seen.expires_at


@mutant("test_completed_record_lasts_for_nearly_the_retention_of_its_claim")
def completion_lasts_for_half(store, complete, lease, result, *, retention):
    """A completed record lasts for half of its retention."""
    return complete(lease, result, retention=as_duration(retention) / 2)


@mutant("test_duration_may_be_seconds")
def seconds_are_milliseconds(store, complete, lease, result, *, retention):
    """A number is no number of seconds."""
    if isinstance(retention, int):
        retention = timedelta(milliseconds=retention)
    return complete(lease, result, retention=retention)


@mutant("test_what_is_no_duration_is_told_and_changes_nothing")
def anything_is_a_duration(store, complete, lease, result, *, retention):
    """What is no duration is none at all."""
    if not isinstance(retention, (int, timedelta)):
        retention = timedelta(0)
    return complete(lease, result, retention=retention)


@mutant("test_R60_completion_of_a_record_that_is_gone_says_so")
def gone_record_is_anothers(store, complete, lease, result, *, retention):
    """A completion that finds no record says that another attempt took over."""
    try:
        return complete(lease, result, retention=retention)
    except LeaseLost as lost:
        raise LeaseLost from lost


@mutant("test_R66_I7_late_completion_is_refused")
def anothers_record_is_gone(store, complete, lease, result, *, retention):
    """A completion that was superseded says that the record is gone."""
    try:
        return complete(lease, result, retention=retention)
    except LeaseLost as lost:
        raise LeaseLost(gone=True) from lost


@mutant("test_R60_completion_of_a_record_that_is_gone_says_so")
def completion_claims_a_gone_record(store, complete, lease, result, *, retention):
    """A completion that finds no record claims it anew."""
    if store.get(lease.record_id) is None:
        lease = store.claim(lease.request)
    return complete(lease, result, retention=retention)


@mutant("test_R67_other_writes_leave_a_record_gone")
def failure_claims_a_gone_record(store, fail, lease, error):
    """A failure that finds no record writes it anew."""
    if store.get(lease.record_id) is None:
        again = store.claim(lease.request)
        fail(again, error)
    fail(lease, error)


@mutant("test_twin_of_complete_says_that_a_record_is_gone")
async def twin_of_complete_forgets_what_is_gone(store, acomplete, lease, result, *, retention):
    """The coroutine twin of a completion says that another took over a record that is gone."""
    try:
        return await acomplete(lease, result, retention=retention)
    except LeaseLost as lost:
        raise LeaseLost from lost


@mutant("test_R80_long_and_hostile_error_is_kept_to_be_read")
def long_error_is_too_long(store, fail, lease, error):
    """A failure whose error is long cannot be written."""
    if len(error) > 255:
        raise StoreError("The error is too long.")
    fail(lease, error)


@mutant("test_I6_failure_keeps_the_fingerprint")
def failure_forgets_the_fingerprint(store, fail, lease, error):
    """A failure forgets the fingerprint, so another request may claim the key."""
    fail(lease, error)
    record = store.get(lease.record_id)
    if record is not None and record.state is State.FAILED:
        store.change(lease.record_id, fingerprint=None)


@mutant("test_release_keeps_the_record_and_forgets_the_fingerprint")
def release_keeps_the_fingerprint(store, release, lease, seen):
    """A release keeps the fingerprint."""
    release(lease)
    store.change(lease.record_id, fingerprint=seen.fingerprint)


@mutant("test_release_keeps_the_record_and_forgets_the_fingerprint")
def release_deletes(store, release, lease):
    """A release deletes the record, and with it the token by which a resend is known."""
    release(lease)
    record = store.get(lease.record_id)
    if record is not None and record.state is State.RELEASED and record.token == lease.token:
        del store._records[lease.record_id]


@mutant("test_R71_ended_record_lasts_no_longer_for_ever")
def failure_is_for_ever(store, fail, lease, error, seen):
    """A record whose take-over is refused lasts for ever, also after it has failed."""
    fail(lease, error)
    if seen.expires_at is None:
        store.change(lease.record_id, expires_at=None)


@mutant("test_twin_of_complete")
async def twin_of_complete_loses_the_result(store, acomplete, lease, result, *, retention):
    """The coroutine twin of a completion keeps no result."""
    return await acomplete(lease, b"", retention=retention)


@mutant("test_twin_of_fail")
async def twin_of_fail_releases(store, afail, lease, error):
    """The coroutine twin of one operation does another."""
    await store.arelease(lease)


@mutant("test_twin_of_release")
async def twin_of_release_fails(store, arelease, lease):
    """And the other way round."""
    await store.afail(lease, "released")
