"""Mutants that do not know what became of a write, or what happened before it."""

from __future__ import annotations

from dataclasses import replace

from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.keys import new_token
from django_idempotency.leases import Lease, Proof
from django_idempotency.records import State
from tests.unit.contract.mutants.base import Mutant, mutant


@mutant("test_R68_claim_whose_answer_is_lost_is_won_once")
def resend_draws_a_token(store, claim, request):
    """A claim whose answer is lost is sent again under a new token."""
    try:
        return claim(request)
    except StoreError:
        return claim(replace(request, token=new_token()))


@mutant("test_R68_claim_of_a_coroutine_whose_answer_is_lost_is_won_once")
async def resend_of_a_coroutine_draws_a_token(store, aclaim, request):
    """A coroutine's claim whose answer is lost is sent again under a new token."""
    try:
        return await aclaim(request)
    except StoreError:
        return await aclaim(replace(request, token=new_token()))


@mutant("test_R68_claim_whose_answer_is_lost_is_won_once")
def resend_is_another_attempt(store, claim, request):
    """A claim that is sent again counts as one more attempt."""
    try:
        return claim(request)
    except StoreError:
        record = store.get(request.record_id)
        if record.token == request.token:
            store.change(request.record_id, attempts=record.attempts + 1)
        return claim(request)


@mutant("test_I1_I12_refused_claim_whose_answer_is_lost_stays_refused")
def claim_without_an_answer_counts_as_won(store, claim, request):
    """A claim whose answer is lost counts as won, whoever has the lease."""
    try:
        return claim(request)
    except StoreError:
        record = store.get(request.record_id)
        return Lease(Proof(record.record_id, record.epoch, record.token), request)


@mutant("test_R68_completion_whose_answer_is_lost_is_kept")
def completion_without_an_answer_is_late(store, complete, lease, result, *, retention):
    """A completion whose answer is lost is told that its lease was."""
    try:
        return complete(lease, result, retention=retention)
    except StoreError:
        raise LeaseLost from None


@mutant("test_R66_I7_late_completion_whose_answer_is_lost_is_refused")
def completion_without_an_answer_counts_as_made(store, complete, lease, result, *, retention):
    """A completion whose answer is lost counts as made, even a late one."""
    try:
        return complete(lease, result, retention=retention)
    except StoreError:
        record = store.get(lease.record_id)
        return record.expires_at or record.now + retention


class EndingWithoutAnAnswerIsUndone(Mutant):
    """A failure or release whose answer is lost is taken back."""

    rule = "test_R68_ending_whose_answer_is_lost_is_made"

    def fail(self, lease, error):
        try:
            super().fail(lease, error)
        except StoreError:
            self.change(lease.record_id, state=State.IN_PROGRESS)

    def release(self, lease):
        try:
            super().release(lease)
        except StoreError:
            self.change(lease.record_id, state=State.IN_PROGRESS)


@mutant("test_R69_renewal_whose_answer_is_lost_is_held")
def renewal_without_an_answer_holds_nothing(store, renew, leases, duration):
    """A renewal whose answer is lost says that all leases are."""
    try:
        return renew(leases, duration)
    except StoreError:
        return set()


@mutant("test_resolution_whose_answer_is_lost_was_made_once")
def resolution_is_sent_again(store, resolve, record_id, resolution):
    """A resolution whose answer is lost is sent again, and meets its own epoch."""
    try:
        return resolve(record_id, resolution)
    except StoreError:
        return resolve(record_id, resolution)


@mutant("test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes")
def claim_forgets_what_happened_meanwhile(store, claim, request, seen):
    """A claim writes by what it has read, whatever has happened since."""
    store.between()
    if store.is_won(seen, request):
        store.put_back(seen)
    return claim(request)


@mutant("test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes")
def claim_gives_up_what_has_changed(store, claim, request, seen):
    """A claim is refused by a record that has changed since it was read, in whatever way."""
    store.between()
    changed = store.get(request.record_id)
    if changed is None or seen.state is changed.state:
        return claim(request)
    return changed


@mutant("test_R76_claim_of_a_record_that_is_swept_meanwhile")
def claim_gives_up_what_was_swept(store, claim, request, seen):
    """A claim is refused by a record that has been swept since it was read."""
    store.between()
    return seen if store.get(request.record_id) is None else claim(request)


@mutant("test_I9_R75_sweep_repeats_its_predicate_as_it_deletes")
def sweep_deletes_what_it_has_read(store, sweep, *, limit=5000):
    """A sweep deletes what had expired when it looked, whatever has happened since."""
    expired = [x for x in list(store._records) if (r := store.get(x)) is not None and r.expired]
    store.between()
    return store.drop(expired[:limit])
