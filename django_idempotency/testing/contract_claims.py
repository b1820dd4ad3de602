"""The part of the store contract about claims: who wins, who is refused, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from django_idempotency import keys
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import (
    FINGERPRINT,
    HOUR,
    OTHER_FINGERPRINT,
    ContractBase,
    unchanged,
)

#: Eight fingerprints, newest first: one for each secret that is still supported.
EIGHT = tuple(bytes([number]) * 32 for number in range(11, 19))
SECOND = 1_000_000

same_or_other = pytest.mark.parametrize(
    "fingerprint", [FINGERPRINT, OTHER_FINGERPRINT], ids=["same", "other"]
)

HOSTILE = {
    "quotes": '\'; DROP TABLE "idempotency_record"; --',
    "braces": '{"$gt": ""} {0} ${HOME} {{x}}',
    "percent": "%s %(id)s %% \\x00 \\u0000 \\",
    "wildcards": "*[a-z]?:_#^",
    "spaces": "  a  b  ",
    "255 characters": "k" * 255,
    "255 outside the BMP": "\N{KEY}" * 255,
    "not ASCII": "Ключ-clé-鍵-\N{LATIN SMALL LETTER SHARP S}\N{RIGHT-TO-LEFT OVERRIDE}",
}
hostile = pytest.mark.parametrize("text", list(HOSTILE.values()), ids=list(HOSTILE))


class ClaimRules(ContractBase):
    """Who wins a claim in which state, and what that leaves."""

    # Won.

    def test_I1_claim_of_a_new_key_is_won(self, store: BaseStore) -> None:
        request = self.asked()

        lease = self.won(store.claim(request))

        assert lease.record_id == request.record_id
        assert lease.token == request.token
        assert not lease.takeover

    def test_won_claim_is_recorded(self, store: BaseStore) -> None:
        request = self.asked(operation="POST payments")

        lease = self.won(store.claim(request))

        record = self.record(store, lease)
        assert (record.record_id, record.state) == (request.record_id, State.IN_PROGRESS)
        assert (record.scope, record.key) == (request.scope, request.key)
        assert (record.operation, record.fingerprint) == ("POST payments", FINGERPRINT)
        assert (record.epoch, record.token) == (lease.fencing_token, request.token)
        assert (record.attempts, record.result, record.error) == (1, None, "")
        assert record.live
        assert not record.expired

    def test_times_of_a_claim_are_the_stores_and_in_utc(self, store: BaseStore) -> None:
        lease = self.live(store, lease=timedelta(seconds=90.5))

        record = self.record(store, lease)
        times = [record.created_at, record.updated_at, record.lease_until, record.expires_at]
        assert all(time is not None and time.utcoffset() == timedelta(0) for time in times)
        assert record.created_at == record.updated_at <= record.now
        assert record.lease_until is not None
        lasts = record.lease_until - record.created_at
        assert abs(lasts - timedelta(seconds=90.5)) <= self.precision
        assert lease.lease_until == record.lease_until

    @same_or_other
    def test_claim_of_a_released_record_is_won_by_anything(
        self, store: BaseStore, fingerprint: bytes
    ) -> None:
        first = self.ended(store, "released")

        lease = self.won(store.claim(self.again(first.request, fingerprints=(fingerprint,))))

        record = self.record(store, lease)
        assert (record.state, record.fingerprint) == (State.IN_PROGRESS, fingerprint)
        assert (record.attempts, lease.takeover) == (2, False)

    def test_claim_of_a_failed_record_is_won_by_the_same_fingerprint(
        self, store: BaseStore
    ) -> None:
        first = self.ended(store, "failed")

        lease = self.won(store.claim(self.again(first.request)))

        record = self.record(store, lease)
        assert (record.state, record.error) == (State.IN_PROGRESS, "")
        assert (record.attempts, lease.takeover) == (2, False)

    def test_R66_lapsed_lease_is_taken_over_by_the_same_fingerprint(self, store: BaseStore) -> None:
        first = self.lapsed(store)

        lease = self.won(store.claim(self.again(first.request, lease=HOUR)))

        record = self.record(store, lease)
        assert record.live
        assert record.token == lease.token != first.token
        assert (record.attempts, lease.takeover) == (2, True)
        # It has been running since it took over (R49).
        assert first.lease_until is not None
        assert record.running_for is not None
        since = (record.now - first.lease_until + self.precision).total_seconds()
        assert record.running_for <= since

    @pytest.mark.parametrize("ending", ["lapsed", "failed"])
    def test_record_without_a_fingerprint_is_claimed_by_any_and_keeps_it(
        self, store: BaseStore, ending: str
    ) -> None:
        first = self.ended(store, ending, fingerprints=())

        lease = self.won(store.claim(self.again(first.request, fingerprints=(FINGERPRINT,))))

        assert self.record(store, lease).fingerprint == FINGERPRINT

    # Refused, and nothing has changed.

    def is_refused(self, store: BaseStore, first: Lease, **fields: Any) -> None:
        """Fail unless a claim is refused with the record as it stands, and changes nothing."""
        before = self.record(store, first)
        told = self.refused(store.claim(self.again(first.request, **fields)))
        assert unchanged(before, told), "the claim was not told what stands against it"
        assert unchanged(before, self.record(store, first)), "a refused claim changed the record"

    @same_or_other
    def test_I1_I12_claim_of_a_live_lease_is_refused(
        self, store: BaseStore, fingerprint: bytes
    ) -> None:
        first = self.live(store)

        self.is_refused(store, first, fingerprints=(fingerprint,), operation="other")

    @same_or_other
    def test_I3_I12_claim_of_a_completed_record_is_refused(
        self, store: BaseStore, fingerprint: bytes
    ) -> None:
        first = self.ended(store, "completed")

        self.is_refused(store, first, fingerprints=(fingerprint,), operation="other")

    def test_I11_I12_claim_of_a_failed_record_is_refused_to_another_fingerprint(
        self, store: BaseStore
    ) -> None:
        first = self.ended(store, "failed")

        self.is_refused(store, first, fingerprints=(OTHER_FINGERPRINT,))

    def test_R70_I11_lapsed_lease_is_not_taken_over_by_another_fingerprint(
        self, store: BaseStore
    ) -> None:
        first = self.lapsed(store)

        self.is_refused(store, first, fingerprints=(OTHER_FINGERPRINT,))

    @pytest.mark.parametrize("owner", ["take_over", "refuse"])
    def test_R71_lapsed_lease_is_not_taken_over_where_that_is_refused(
        self, store: BaseStore, owner: str
    ) -> None:
        first = self.lapsed(store, on_stale=owner)
        assert self.record(store, first).stale

        self.is_refused(store, first, on_stale="refuse")

    def test_R71_lease_whose_owner_refused_take_overs_is_taken_over_by_one_who_does_not(
        self, store: BaseStore
    ) -> None:
        first = self.lapsed(store, on_stale="refuse")

        lease = self.won(store.claim(self.again(first.request, on_stale="take_over")))

        assert lease.takeover
        assert self.record(store, lease).expires_at is not None

    @pytest.mark.parametrize("ending", ["failed", "released"])
    def test_R71_refusing_take_overs_refuses_nothing_else(
        self, store: BaseStore, ending: str
    ) -> None:
        first = self.ended(store, ending, on_stale="refuse")

        self.won(store.claim(self.again(first.request)))

    def test_I10_the_key_of_another_scope_is_another_record(self, store: BaseStore) -> None:
        first = self.live(store, scope="one")

        lease = self.won(store.claim(self.asked(first.request.key, scope="two")))

        assert lease.record_id != first.record_id
        assert self.record(store, first).scope == "one"

    # Several fingerprints: one for each secret.

    def test_newest_fingerprint_is_kept(self, store: BaseStore) -> None:
        lease = self.live(store, fingerprints=EIGHT)

        assert self.record(store, lease).fingerprint == EIGHT[0]

    @pytest.mark.parametrize("place", range(8))
    @pytest.mark.parametrize("ending", ["failed", "lapsed"])
    def test_I6_any_of_the_fingerprints_may_match_and_the_kept_one_stays(
        self, store: BaseStore, ending: str, place: int
    ) -> None:
        first = self.ended(store, ending, fingerprints=(EIGHT[place],))

        lease = self.won(store.claim(self.again(first.request, fingerprints=EIGHT)))

        assert self.record(store, lease).fingerprint == EIGHT[place]

    @pytest.mark.parametrize("ending", ["failed", "lapsed"])
    def test_I11_none_of_the_fingerprints_matches(self, store: BaseStore, ending: str) -> None:
        first = self.ended(store, ending)

        self.is_refused(store, first, fingerprints=EIGHT)

    @pytest.mark.parametrize("ending", ["failed", "lapsed"])
    def test_R47_I6_refused_claim_is_sent_once_more_with_the_stored_fingerprint(
        self, store: BaseStore, ending: str
    ) -> None:
        first = self.ended(store, ending)
        request = self.again(first.request, fingerprints=EIGHT)
        assert self.refused(store.claim(request)).fingerprint == FINGERPRINT

        lease = self.won(store.claim(replace(request, fingerprints=(*EIGHT, FINGERPRINT))))

        assert lease.token == request.token
        assert self.record(store, lease).fingerprint == FINGERPRINT

    # The epoch.

    def test_I2_epoch_begins_with_the_clock_in_microseconds(self, store: BaseStore) -> None:
        lease = self.live(store)

        now = self.record(store, lease).created_at.timestamp()
        assert abs(lease.fencing_token - now * SECOND) < SECOND

    @pytest.mark.parametrize("ending", ["lapsed", "failed", "released", "expired"])
    def test_I2_epoch_grows_with_each_claim(self, store: BaseStore, ending: str) -> None:
        first = self.expired(store) if ending == "expired" else self.ended(store, ending)

        lease = self.won(store.claim(self.again(first.request)))

        assert lease.fencing_token > first.fencing_token

    def test_I2_epoch_grows_faster_than_the_clock_if_need_be(self, store: BaseStore) -> None:
        request = self.asked()
        epochs = []

        for _ in range(20):
            lease = self.won(store.claim(self.again(request)))
            epochs.append(lease.fencing_token)
            store.release(lease)

        assert epochs == sorted(set(epochs))

    # The token: one per attempt, sent again with each resend.

    @pytest.mark.parametrize("ending", ["lapsed", "failed", "released"])
    def test_R68_each_claim_has_its_own_token(self, store: BaseStore, ending: str) -> None:
        first = self.ended(store, ending)

        lease = self.won(store.claim(self.again(first.request)))

        assert lease.token != first.token
        assert self.record(store, lease).token == lease.token

    @pytest.mark.parametrize("before", ["absent", "lapsed", "failed", "released"])
    def test_R68_claim_whose_answer_was_lost_is_won_when_it_is_sent_again(
        self, store: BaseStore, before: str
    ) -> None:
        request = self.asked()
        if before != "absent":
            request = self.again(self.ended(store, before).request, lease=HOUR)
        first = self.won(store.claim(request))
        recorded = self.record(store, first)

        again = self.won(store.claim(request))

        assert (again.fencing_token, again.token) == (first.fencing_token, first.token)
        assert unchanged(recorded, self.record(store, first))

    def test_R68_lapsed_lease_is_the_same_when_its_claim_arrives_once_more(
        self, store: BaseStore
    ) -> None:
        lease = self.lapsed(store)
        before = self.record(store, lease)

        again = self.won(store.claim(lease.request))

        assert (again.fencing_token, again.takeover) == (lease.fencing_token, False)
        assert unchanged(before, self.record(store, lease))

    def test_R68_ended_attempt_wins_nothing_when_its_claim_arrives_once_more(
        self, store: BaseStore
    ) -> None:
        lease = self.ended(store, "completed")
        before = self.record(store, lease)

        record = self.refused(store.claim(lease.request))

        assert (record.state, record.token) == (State.COMPLETED, lease.token)
        assert unchanged(before, self.record(store, lease))

    @pytest.mark.parametrize("ending", ["failed", "released"])
    def test_R68_claim_that_arrives_once_more_after_its_end_is_answered(
        self, store: BaseStore, ending: str
    ) -> None:
        lease = self.ended(store, ending)
        before = self.record(store, lease)

        told = store.claim(lease.request)

        assert isinstance(told, Lease) or unchanged(before, told)

    # Hostile text.

    @hostile
    def test_R80_hostile_text_comes_back_as_it_was(self, store: BaseStore, text: str) -> None:
        request = self.asked(text, scope=text, operation=text, record_id=keys.new_token())
        first = self.won(store.claim(request))

        record = self.refused(store.claim(self.again(request)))

        assert (record.scope, record.key, record.operation) == (text, text, text)
        assert unchanged(record, self.record(store, first))
