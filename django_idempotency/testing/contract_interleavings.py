"""The part of the store contract about what happens between a store's read and its write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_idempotency.claims import Decision, Resolution, decide
from django_idempotency.leases import Lease
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import HOUR, OTHER_FINGERPRINT, needs
from django_idempotency.testing.contract_races import RaceRules

#: What a claim reads, what happens before it writes, and what it is told then: a state, or "won".
INTERLEAVINGS = [
    ("lapsed", "completed by its owner", "COMPLETED"),
    ("lapsed", "renewed by its owner", "IN_PROGRESS"),
    ("lapsed", "failed by its owner", "won"),
    ("lapsed", "released by its owner", "won"),
    ("lapsed", "released by an operator", "won"),
    ("lapsed", "claimed by another", "IN_PROGRESS"),
    ("failed", "claimed by another", "IN_PROGRESS"),
    ("failed", "released by an operator", "won"),
    ("released", "claimed by another", "IN_PROGRESS"),
    ("released", "failed by another", "FAILED"),
    ("expired", "claimed by another", "IN_PROGRESS"),
    ("expired", "failed by another", "FAILED"),
    ("expired in progress", "completed by its owner", "COMPLETED"),
    ("expired in progress", "renewed by its owner", "IN_PROGRESS"),
    ("expired in progress", "failed by its owner", "won"),
    ("expired in progress", "released by its owner", "won"),
    ("expired in progress", "claimed by another", "IN_PROGRESS"),
]


class InterleavingRules(RaceRules):
    """Each write repeats the whole predicate by which it was decided; so nothing comes between."""

    def happens(self, store: BaseStore, owner: Lease, meanwhile: str) -> Lease:
        """Let somebody else, in another thread, do something; return the lease that is owed."""
        what, _, who = meanwhile.partition(" by ")
        lease = owner
        if who == "another":  # who asks for another thing where that is allowed
            seen = self.record(store, owner)
            kept = seen.fingerprint is not None and not seen.expired
            fingerprints = owner.request.fingerprints if kept else (OTHER_FINGERPRINT,)
            lease = self.won(
                store.claim(self.again(owner.request, lease=HOUR, fingerprints=fingerprints))
            )
        if who == "an operator":
            assert store.resolve(
                owner.record_id,
                Resolution(
                    "release", epoch=owner.fencing_token, state=self.record(store, owner).state
                ),
            )
        elif what == "renewed":
            assert store.renew([lease], HOUR) == {lease}
        elif what != "claimed":
            self.end(store, lease, what)
        return lease

    def meanwhile(
        self, store: BaseStore, owner: Lease, meanwhile: str, call: Callable[[], Any]
    ) -> tuple[Any, Lease]:
        """Make a call, between whose read and write something happens; see `happens`."""
        done: list[Lease] = []

        def other() -> None:
            done.extend(self.together(store, [lambda: self.happens(store, owner, meanwhile)]))

        with self.between_read_and_write(store, other):
            told = call()
        return told, done[0]

    @needs("interleavings")
    @pytest.mark.parametrize(("before", "between", "told"), INTERLEAVINGS)
    def test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes(
        self, store: BaseStore, before: str, between: str, told: str
    ) -> None:
        if before.startswith("expired"):
            owner = self.expired(store, "completed" if before == "expired" else "lapsed")
        else:
            owner = self.ended(store, before)
        request = self.again(owner.request, lease=HOUR, retention=HOUR)

        claimed, other = self.meanwhile(store, owner, between, lambda: store.claim(request))

        record = self.record(store, owner)
        if told == "won":
            lease = self.won(claimed)
            assert lease.fencing_token > owner.fencing_token
            assert (record.token, record.error) == (lease.token, "")
            return
        refused = self.refused(claimed)
        assert (refused.state.value, refused.token) == (told, other.token)
        assert refused.live is (told == "IN_PROGRESS")
        assert (record.state, record.token, record.epoch) == (
            refused.state,
            other.token,
            other.fencing_token,
        )
        if told == "FAILED":  # by somebody who asked for another thing
            assert decide(refused, request) is Decision.MISMATCH

    @needs("interleavings")
    def test_R66_claim_that_finds_another_lapsed_lease_as_it_writes_takes_over(
        self, store: BaseStore
    ) -> None:
        owner = self.ended(store, "failed")

        def lapses() -> None:
            lease = self.won(store.claim(self.again(owner.request, lease=self.moment)))
            self.lapse(store, lease)

        with self.between_read_and_write(store, lambda: self.together(store, [lapses])):
            claimed = store.claim(self.again(owner.request, lease=HOUR))

        if isinstance(claimed, Lease):
            assert claimed.takeover
        else:  # by the clock of this host, which was read before the lease lapsed
            assert claimed.state is State.IN_PROGRESS

    @needs("interleavings", "sweep")
    @pytest.mark.parametrize("between", ["renewed by its owner", "claimed by another"])
    def test_I9_R75_sweep_repeats_its_predicate_as_it_deletes(
        self, store: BaseStore, between: str
    ) -> None:
        while store.sweep():
            pass
        owner = self.expired(store, "lapsed")

        swept, other = self.meanwhile(store, owner, between, lambda: store.sweep())

        assert swept == 0
        assert self.record(store, owner).live
        assert store.renew([other], HOUR) == {other}

    @needs("interleavings", "sweep")
    @pytest.mark.parametrize("claimed_again", [False, True])
    def test_R76_claim_of_a_record_that_is_swept_meanwhile(
        self, store: BaseStore, claimed_again: bool
    ) -> None:
        owner = self.expired(store)
        request = self.again(owner.request, lease=HOUR)
        others: list[Lease | Record] = []

        def sweep() -> None:
            while store.sweep():
                pass
            if claimed_again:
                others.append(store.claim(self.again(owner.request, lease=HOUR)))

        with self.between_read_and_write(store, lambda: self.together(store, [sweep])):
            told = store.claim(request)

        winner = self.won(others[0] if claimed_again else told)
        assert self.record(store, owner).token == winner.token
        if claimed_again:
            assert self.refused(told).token == winner.token
        assert self.record(store, owner).state is State.IN_PROGRESS
