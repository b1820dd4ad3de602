"""Mutants whose claims are wrong."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from django_idempotency.leases import Lease
from django_idempotency.records import Record, State
from tests.unit.contract.mutants.base import GAP, AbsentRecords, Mutant, mutant, placeholder


@mutant("test_R26_I1_one_of_many_threads_wins_each_key")
def claim_reads_then_writes(store, claim, request):
    """A claim reads, decides, and then writes, whatever has happened in between."""
    seen = store.get(request.record_id)
    if store.is_won(seen, request):
        time.sleep(GAP)
        if seen is None:
            store.drop([request.record_id])
        else:
            store.put_back(seen)
    return claim(request)


@mutant("test_R67_I7_no_late_write_undoes_a_take_over")
def claim_compares_epoch_and_token_alone(store, claim, request, seen):
    """A claim takes over what has been completed, or renewed, since it read the record."""
    if store.is_won(seen, request):
        time.sleep(GAP)
        now = store.get(request.record_id)
        if (now.epoch, now.token) == (seen.epoch, seen.token):
            store.put_back(seen)
    return claim(request)


@mutant("test_R53_refused_claim_does_not_wait", at_once=0.04)
def claim_waits(store, claim, request):
    """A claim waits for the owner instead of saying that there is one."""
    claimed = claim(request)
    if isinstance(claimed, Record) and (claimed.lease_left or 0) > 3000:
        threading.Event().wait(0.05)  # it would be for the whole lease
    return claimed


@mutant("test_R53_claims_of_different_keys_are_all_won")
def claims_queue(store, claim, request):
    """A claim is refused while another one is under way, of whatever key."""
    if not store.busy.acquire(blocking=False):
        return placeholder(request, store._clock())
    try:
        time.sleep(GAP / 10)
        return claim(request)
    finally:
        store.busy.release()


@mutant("test_I3_I12_claim_of_a_completed_record_is_refused")
def completed_is_claimed_again(store, claim, request, seen):
    """A claim runs again what has been completed."""
    if seen.state is State.COMPLETED and seen.token != request.token:
        store.change(request.record_id, state=State.RELEASED, fingerprint=None)
    return claim(request)


@mutant("test_claim_of_a_failed_record_is_won_by_the_same_fingerprint")
def failed_is_never_claimed_again(store, claim, request, seen):
    """A failed record stands against everybody."""
    return seen if seen.state is State.FAILED and not seen.expired else claim(request)


@mutant("test_I1_I12_claim_of_a_live_lease_is_refused")
def refused_claim_leaves_something(store, claim, request):
    """A claim that is refused counts as an attempt."""
    claimed = claim(request)
    if isinstance(claimed, Record) and claimed.live:
        store.change(request.record_id, attempts=claimed.attempts + 1)
    return claimed


@mutant("test_R66_lapsed_lease_is_taken_over_by_the_same_fingerprint")
def leases_are_never_taken_over(store, claim, request, seen):
    """A lapsed lease stands against everybody."""
    return seen if seen.stale and not seen.expired else claim(request)


@mutant("test_R66_lapsed_lease_is_taken_over_by_the_same_fingerprint")
def take_over_tells_nobody(store, claim, request):
    """A lease that was taken over looks like a new one."""
    claimed = claim(request)
    if isinstance(claimed, Lease):
        claimed.takeover = False
    return claimed


@mutant("test_I1_I12_claim_of_a_live_lease_is_refused")
def live_lease_is_taken_over(store, claim, request, seen):
    """A claim takes over a lease that has not lapsed."""
    if seen.live and seen.token != request.token:
        store.change(request.record_id, lease_until=seen.now)
    return claim(request)


@mutant("test_R71_lapsed_lease_is_not_taken_over_where_that_is_refused")
def refuse_is_ignored(store, claim, request):
    """A lapsed lease is taken over, though that was to be refused."""
    claimed = claim(request)
    if isinstance(claimed, Record) and claimed.stale:
        return claim(replace(request, on_stale="take_over"))
    return claimed


@mutant("test_R71_refusing_take_overs_refuses_nothing_else")
def refuse_refuses_failures(store, claim, request, seen):
    """A claimant that takes nothing over does not claim what has failed either."""
    return seen if request.on_stale == "refuse" and seen.state is State.FAILED else claim(request)


@mutant("test_R71_record_whose_take_over_is_refused_lasts_until_it_is_ended")
def refuse_expires(store, claim, request):
    """A record whose take-over is refused expires before anybody has decided."""
    claimed = claim(request)
    if isinstance(claimed, Lease) and request.on_stale == "refuse":
        store.change(request.record_id, expires_at=claimed.claimed_at + request.lifetime)
    return claimed


@mutant("test_won_claim_is_recorded")
def operation_is_forgotten(store, claim, request):
    """A record does not say what is being done."""
    return claim(replace(request, operation=""))


@mutant("test_times_of_a_claim_are_the_stores_and_in_utc")
def leases_are_whole_seconds(store, claim, request):
    """A lease lasts for whole seconds."""
    if request.lease.total_seconds() > 1:
        request = replace(request, lease=request.lease // 1_000_000 * 1_000_000)
    return claim(request)


@mutant("test_R80_hostile_text_comes_back_as_it_was")
def text_is_tidied(store, claim, request):
    """Scopes, keys and operations lose the spaces around them."""
    tidy = {name: getattr(request, name).strip() for name in ("scope", "key", "operation")}
    return claim(replace(request, **tidy))


@mutant("test_I10_the_key_of_another_scope_is_another_record")
def scopes_meet(store, claim, request):
    """A record is found by its key alone, whoever's key it is."""
    for record in list(store._records.values()):
        if record.key == request.key:
            request = replace(request, record_id=record.record_id)
    return claim(request)


class DamageIsAbsence(Mutant):
    """A record that cannot be read is taken for none."""

    rule = "test_claim_of_a_damaged_record_is_an_error_and_never_a_lease"
    records_class = AbsentRecords
