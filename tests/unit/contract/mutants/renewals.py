"""Mutants that renew too much, or too little."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

from django_idempotency.records import Lease, as_duration
from tests.unit.contract.mutants.base import GAP, Mutant

__all__: list[str] = []


class RenewalIsNotFenced(Mutant):
    """A renewal asks for no proof."""

    rule = "test_R68_I7_late_renewal_is_refused"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        owners = {self.owners(lease): lease for lease in leases}
        return {owners[lease] for lease in super().renew(list(owners), duration)}


class RenewalMovesTheExpiry(Mutant):
    """A renewal prolongs the record, too."""

    rule = "test_R69_renewal_does_not_prolong_the_record"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        held = super().renew(leases, duration)
        for lease in held:
            self.change(lease.record_id, expires_at=self._clock() + as_duration(duration))
        return held


class RenewalCountsAsAClaim(Mutant):
    """A renewal says that the attempt has just begun."""

    rule = "test_R49_renewed_attempt_has_been_running_since_its_claim"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        held = super().renew(leases, duration)
        for lease in held:
            self.change(lease.record_id, updated_at=self._clock())
        return held


class RenewalOfTheFirst(Mutant):
    """A renewal of many renews the first."""

    rule = "test_R68_many_leases_are_renewed_and_those_still_held_are_told"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        leases = list(leases)
        super().renew(leases[:1], duration)
        with self.exclusively() as records:
            return {lease for lease in leases if self.owned(records, lease)}


class RenewalOfNothingFails(Mutant):
    """A renewal of no lease is an error."""

    rule = "test_renewal_of_nothing_is_nothing"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        first, *others = leases
        return super().renew([first, *others], duration)


class RenewalOfEachToken(Mutant):
    """A renewal takes the leases of one claim, which was sent again, for one."""

    rule = "test_R68_every_lease_under_one_proof_is_renewed"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        return super().renew({lease.token: lease for lease in leases}.values(), duration)


class RenewalReadsTwice(Mutant):
    """A renewal reads its leases twice, and the second time there are none."""

    rule = "test_R69_leases_that_can_be_read_once_are_renewed"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        held = super().renew(leases, duration)
        return {lease for lease in leases if lease in held}


class RenewalsQueue(Mutant):
    """A renewal that meets another one gives all leases for lost."""

    rule = "test_R69_renewals_that_meet_all_succeed"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        if not self.busy.acquire(blocking=False):
            return set()
        try:
            time.sleep(GAP)
            return super().renew(leases, duration)
        finally:
            self.busy.release()


class RenewalTellsThatAllAreHeld(Mutant):
    """A renewal says of lost leases, too, that they are held."""

    rule = "test_R68_I7_late_renewal_is_refused"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        leases = list(leases)
        super().renew(leases, duration)
        return set(leases)


class RenewalAddsToTheLease(Mutant):
    """A renewal begins where the lease would have ended, not now."""

    rule = "test_R69_renewal_extends_the_lease_from_now_on"

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        before = {lease: self.get(lease.record_id) for lease in leases}
        held = super().renew(before, duration)
        for lease in held:
            record = before[lease]
            if record is not None and record.lease_until is not None:
                self.change(lease.record_id, lease_until=record.lease_until + duration)
        return held
