"""Mutants that renew too much, or too little."""

from __future__ import annotations

import time

from django_idempotency.records import as_duration
from tests.unit.contract.mutants.base import GAP, mutant


@mutant("test_R68_I7_late_renewal_is_refused")
def renewal_is_not_fenced(store, renew, leases, duration):
    """A renewal asks for no proof."""
    owners = {store.owners(lease): lease for lease in leases}
    return {owners[lease] for lease in renew(list(owners), duration)}


@mutant("test_R69_renewal_does_not_prolong_the_record")
def renewal_moves_the_expiry(store, renew, leases, duration):
    """A renewal prolongs the record, too."""
    held = renew(leases, duration)
    for lease in held:
        store.change(lease.record_id, expires_at=store._clock() + as_duration(duration))
    return held


@mutant("test_R49_renewed_attempt_has_been_running_since_its_claim")
def renewal_counts_as_a_claim(store, renew, leases, duration):
    """A renewal says that the attempt has just begun."""
    held = renew(leases, duration)
    for lease in held:
        store.change(lease.record_id, updated_at=store._clock())
    return held


@mutant("test_R68_many_leases_are_renewed_and_those_still_held_are_told")
def renewal_of_the_first(store, renew, leases, duration):
    """A renewal of many renews the first."""
    leases = list(leases)
    renew(leases[:1], duration)
    with store.exclusively() as records:
        return {lease for lease in leases if store.owned(records, lease)}


@mutant("test_renewal_of_nothing_is_nothing")
def renewal_of_nothing_fails(store, renew, leases, duration):
    """A renewal of no lease is an error."""
    first, *others = leases
    return renew([first, *others], duration)


@mutant("test_R68_every_lease_under_one_proof_is_renewed")
def renewal_of_each_token(store, renew, leases, duration):
    """A renewal takes the leases of one claim, which was sent again, for one."""
    return renew({lease.token: lease for lease in leases}.values(), duration)


@mutant("test_R69_leases_that_can_be_read_once_are_renewed")
def renewal_reads_twice(store, renew, leases, duration):
    """A renewal reads its leases twice, and the second time there are none."""
    held = renew(leases, duration)
    return {lease for lease in leases if lease in held}


@mutant("test_R69_renewals_that_meet_all_succeed")
def renewals_queue(store, renew, leases, duration):
    """A renewal that meets another one gives all leases for lost."""
    if not store.busy.acquire(blocking=False):
        return set()
    try:
        time.sleep(GAP)
        return renew(leases, duration)
    finally:
        store.busy.release()


@mutant("test_R68_I7_late_renewal_is_refused")
def renewal_tells_that_all_are_held(store, renew, leases, duration):
    """A renewal says of lost leases, too, that they are held."""
    leases = list(leases)
    renew(leases, duration)
    return set(leases)


@mutant("test_R69_renewal_extends_the_lease_from_now_on")
def renewal_adds_to_the_lease(store, renew, leases, duration):
    """A renewal begins where the lease would have ended, not now."""
    before = {lease: store.get(lease.record_id) for lease in leases}
    held = renew(before, duration)
    for lease in held:
        record = before[lease]
        if record is not None and record.lease_until is not None:
            store.change(lease.record_id, lease_until=record.lease_until + duration)
    return held
