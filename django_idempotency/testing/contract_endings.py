"""The part of the store contract about owners: complete, fail, release and renew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from django_idempotency import keys
from django_idempotency.claims import Resolution
from django_idempotency.exceptions import LeaseLost
from django_idempotency.leases import Lease
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import (
    FINGERPRINT,
    HOUR,
    ContractBase,
    needs,
    unchanged,
)

STATES = {
    "completed": State.COMPLETED,
    "failed": State.FAILED,
    "released": State.RELEASED,
}
RESULTS = {
    "empty": b"",
    "every byte": bytes(range(256)),
    "1 MiB": bytes(range(256)) * 4096,
    "hostile": b"\x00'\"{}$1%s\\\xff\n",
}
#: How an owner can lose its lease; see `EndingRules.lost`.
LOSSES = (
    "taken over",
    "taken over and completed",
    "taken over and failed",
    "taken over and released",
    "expired and claimed",
    "resolved: release",
    "resolved: complete",
    "resolved: expire",
    "resolved: resume",
)
losses = pytest.mark.parametrize("loss", LOSSES)
durations = pytest.mark.parametrize("write", ["complete", "renew", "resolve"])
parts = pytest.mark.parametrize("part", ["record_id", "epoch", "token"])


class EndingRules(ContractBase):
    """What an owner's writes do, and that they do nothing once its lease is lost."""

    # The owner's.

    def test_completion_is_recorded(self, store: BaseStore) -> None:
        lease = self.live(store)

        expires_at = store.complete(lease, b"result", retention=HOUR)

        record = self.record(store, lease)
        assert (record.state, record.result, record.error) == (State.COMPLETED, b"result", "")
        assert (record.lease_until, record.expires_at) == (None, expires_at)
        assert (record.epoch, record.token) == (lease.fencing_token, lease.token)
        assert record.fingerprint == FINGERPRINT

    @pytest.mark.parametrize("result", list(RESULTS.values()), ids=list(RESULTS))
    def test_I4_result_is_kept_byte_for_byte(self, store: BaseStore, result: bytes) -> None:
        lease = self.live(store)

        store.complete(lease, result, retention=HOUR)

        told = self.refused(store.claim(self.again(lease.request)))
        # Not in one assert: pytest would draw up the difference, for a MiB in an hour.
        is_kept = told.result == result and self.record(store, lease).result == result
        assert is_kept

    def test_I6_failure_keeps_the_fingerprint(self, store: BaseStore) -> None:
        lease = self.live(store)

        store.fail(lease, "builtins.RuntimeError")

        record = self.record(store, lease)
        assert (record.state, record.fingerprint) == (State.FAILED, FINGERPRINT)
        assert (record.error, record.lease_until) == ("builtins.RuntimeError", None)
        assert (record.epoch, record.token) == (lease.fencing_token, lease.token)

    def test_release_keeps_the_record_and_forgets_the_fingerprint(self, store: BaseStore) -> None:
        lease = self.live(store)

        store.release(lease)

        record = self.record(store, lease)
        assert (record.state, record.fingerprint) == (State.RELEASED, None)
        assert record.lease_until is None
        assert (record.epoch, record.token) == (lease.fencing_token, lease.token)

    @pytest.mark.parametrize("ending", list(STATES))
    def test_R68_owner_whose_lease_has_lapsed_still_ends_it(
        self, store: BaseStore, ending: str
    ) -> None:
        lease = self.lapsed(store)

        self.end(store, lease, ending)

        assert self.record(store, lease).state is STATES[ending]

    @pytest.mark.parametrize("ending", list(STATES))
    def test_record_says_when_it_was_ended(self, store: BaseStore, ending: str) -> None:
        lease = self.lapsed(store)
        claimed_at = self.record(store, lease).updated_at

        self.end(store, lease, ending)

        assert self.record(store, lease).updated_at > claimed_at

    # Resent: a lost answer, simulated by asking twice.

    def test_R68_completion_whose_answer_was_lost_succeeds_again(self, store: BaseStore) -> None:
        lease = self.live(store)
        expires_at = store.complete(lease, b"first", retention=HOUR)
        before = self.record(store, lease)

        again = store.complete(lease, b"again", retention=2 * HOUR)

        assert again == expires_at
        assert unchanged(before, self.record(store, lease))

    @pytest.mark.parametrize("second", ["failed", "released"])
    @pytest.mark.parametrize("first", list(STATES))
    def test_I3_ended_lease_is_not_ended_otherwise(
        self, store: BaseStore, first: str, second: str
    ) -> None:
        lease = self.ended(store, first)
        before = self.record(store, lease)

        self.end(store, lease, second)

        assert unchanged(before, self.record(store, lease))

    @pytest.mark.parametrize("ending", ["failed", "released"])
    def test_I7_lease_that_was_given_up_completes_nothing(
        self, store: BaseStore, ending: str
    ) -> None:
        lease = self.ended(store, ending)
        before = self.record(store, lease)

        with pytest.raises(LeaseLost):
            store.complete(lease, b"late", retention=HOUR)

        assert unchanged(before, self.record(store, lease))

    # Late: the lease is another's by now.

    def lost(self, store: BaseStore, loss: str) -> tuple[Lease, Record | None]:
        """Return a lease that was lost in one of the ways of `LOSSES`, and the record."""
        how, _, more = loss.partition(": ")
        if how == "resolved":
            lease = self.lapsed(store)
            result = b"operator" if more == "complete" else None
            epoch, state = lease.fencing_token, State.IN_PROGRESS
            assert store.resolve(
                lease.record_id, Resolution(more, epoch=epoch, state=state, result=result)
            )
        elif how == "expired and claimed":
            lease = self.expired(store, "lapsed")
            self.won(store.claim(self.again(lease.request, lease=HOUR, retention=HOUR)))
        else:
            lease = self.lapsed(store)
            successor = self.won(store.claim(self.again(lease.request, lease=HOUR)))
            if ending := how.removeprefix("taken over").removeprefix(" and "):
                self.end(store, successor, ending)
        return lease, store.get(lease.record_id)

    @losses
    def test_R66_I7_late_completion_is_refused(self, store: BaseStore, loss: str) -> None:
        lease, before = self.lost(store, loss)

        with pytest.raises(LeaseLost) as raised:
            store.complete(lease, b"late", retention=HOUR)

        # An expired record may be deleted at any time, and then it is gone.
        assert not raised.value.gone or before is None or before.expired
        assert unchanged(before, store.get(lease.record_id))

    @losses
    def test_R67_I7_late_failure_changes_nothing(self, store: BaseStore, loss: str) -> None:
        lease, before = self.lost(store, loss)

        store.fail(lease, "late")

        assert unchanged(before, store.get(lease.record_id))

    @losses
    def test_R67_I7_late_release_changes_nothing(self, store: BaseStore, loss: str) -> None:
        lease, before = self.lost(store, loss)

        store.release(lease)

        assert unchanged(before, store.get(lease.record_id))

    @losses
    def test_R68_I7_late_renewal_is_refused(self, store: BaseStore, loss: str) -> None:
        lease, before = self.lost(store, loss)

        assert store.renew([lease], 2 * HOUR) == set()

        assert unchanged(before, store.get(lease.record_id))

    @pytest.mark.parametrize("write", ["complete", "fail", "release", "renew"])
    @parts
    def test_R68_proof_is_the_epoch_and_the_token(
        self, store: BaseStore, part: str, write: str
    ) -> None:
        lease, other = self.live(store), self.live(store)
        before = [self.record(store, lease), self.record(store, other)]
        epoch, request = lease.fencing_token, lease.request
        if part == "record_id":
            request = replace(other.request, token=lease.token)
        elif part == "epoch":
            epoch += 1
        else:
            request = replace(request, token=keys.new_token())
        forged = Lease(request, epoch)
        writes: dict[str, Callable[[], object]] = {
            "complete": lambda: store.complete(forged, b"forged", retention=HOUR),
            "fail": lambda: store.fail(forged, "forged"),
            "release": lambda: store.release(forged),
            "renew": lambda: store.renew([forged], 2 * HOUR),
        }

        if write == "complete":
            with pytest.raises(LeaseLost):
                writes[write]()
        else:
            assert not writes[write]()

        assert unchanged(before[0], self.record(store, lease))
        assert unchanged(before[1], self.record(store, other))

    # Gone: deleted by somebody, or evicted, while its owner is at work.

    def gone(self, store: BaseStore) -> Lease:
        """Return a lease whose record is gone."""
        lease = self.live(store)
        self.forget(store, lease.record_id)
        assert store.get(lease.record_id) is None
        return lease

    @needs("deletion")
    def test_R60_completion_of_a_record_that_is_gone_says_so(self, store: BaseStore) -> None:
        lease = self.gone(store)

        with pytest.raises(LeaseLost) as raised:
            store.complete(lease, b"result", retention=HOUR)

        assert raised.value.gone
        assert store.get(lease.record_id) is None
        self.won(store.claim(self.again(lease.request)))

    @needs("deletion")
    def test_R66_record_that_was_gone_and_claimed_is_anothers(self, store: BaseStore) -> None:
        lease = self.gone(store)
        successor = self.won(store.claim(self.again(lease.request)))
        before = self.record(store, successor)

        with pytest.raises(LeaseLost) as raised:
            store.complete(lease, b"late", retention=HOUR)

        assert not raised.value.gone
        assert unchanged(before, self.record(store, successor))

    @needs("deletion")
    @pytest.mark.parametrize("write", ["fail", "release", "renew"])
    def test_R67_other_writes_leave_a_record_gone(self, store: BaseStore, write: str) -> None:
        lease = self.gone(store)

        if write == "renew":
            assert store.renew([lease], HOUR) == set()
        else:
            self.end(store, lease, "failed" if write == "fail" else "released")

        assert store.get(lease.record_id) is None

    # Durations: timedelta or seconds.

    def write(self, store: BaseStore, lease: Lease, write: str, duration: Any) -> None:
        """Call an operation that takes a duration."""
        if write == "renew":
            store.renew([lease], duration)
        elif write == "complete":
            store.complete(lease, b"", retention=duration)
        else:
            epoch, state = lease.fencing_token, State.IN_PROGRESS
            given: dict[str, Any] = {"force": True, "result": b"", "retention": duration}
            store.resolve(
                lease.record_id, Resolution("complete", epoch=epoch, state=state, **given)
            )

    @durations
    def test_duration_may_be_seconds(self, store: BaseStore, write: str) -> None:
        lease = self.live(store)

        self.write(store, lease, write, 5400)

        record = self.record(store, lease)
        until = record.lease_until if write == "renew" else record.expires_at
        assert until is not None
        assert abs(until - record.now - 1.5 * HOUR) < timedelta(minutes=1)

    @durations
    @pytest.mark.parametrize("given", ["5400", None])
    def test_what_is_no_duration_is_told_and_changes_nothing(
        self, store: BaseStore, write: str, given: Any
    ) -> None:
        lease = self.live(store)
        before = self.record(store, lease)

        with pytest.raises(TypeError, match="duration"):
            self.write(store, lease, write, given)

        assert unchanged(before, self.record(store, lease))

    # Renewal.

    def test_R69_renewal_extends_the_lease_from_now_on(self, store: BaseStore) -> None:
        lease = self.live(store, lease=timedelta(minutes=5))
        before = self.record(store, lease)

        assert store.renew([lease], HOUR) == {lease}

        record = self.record(store, lease)
        assert record.lease_until is not None
        assert before.now + HOUR - self.precision <= record.lease_until
        assert record.lease_until <= record.now + HOUR + self.precision

    def test_R49_renewed_attempt_has_been_running_since_its_claim(self, store: BaseStore) -> None:
        lease = self.live(store)
        began = self.record(store, lease).now
        self.pass_time(store, lease.record_id, began + self.moment)

        assert store.renew([lease], HOUR) == {lease}

        running_for = self.record(store, lease).running_for
        assert running_for is not None
        assert running_for >= (self.moment - self.precision).total_seconds()

    def test_R69_renewed_lease_is_not_taken_over(self, store: BaseStore) -> None:
        lease = self.live(store, lease=self.moment)
        assert store.renew([lease], HOUR) == {lease}
        assert lease.lease_until is not None
        self.pass_time(store, lease.record_id, lease.lease_until + self.margin)

        self.refused(store.claim(self.again(lease.request)))

    def test_R69_lapsed_lease_that_nobody_took_is_renewed(self, store: BaseStore) -> None:
        lease = self.lapsed(store)

        assert store.renew([lease], HOUR) == {lease}

        self.refused(store.claim(self.again(lease.request)))

    @pytest.mark.parametrize("ending", list(STATES))
    def test_R68_ended_lease_is_not_renewed(self, store: BaseStore, ending: str) -> None:
        lease = self.ended(store, ending)
        before = self.record(store, lease)

        assert store.renew([lease], HOUR) == set()

        assert unchanged(before, self.record(store, lease))

    def test_R68_many_leases_are_renewed_and_those_still_held_are_told(
        self, store: BaseStore
    ) -> None:
        held = [self.live(store, lease=timedelta(minutes=5)) for _ in range(20)]
        gone = [self.ended(store, ending) for ending in STATES]
        gone += [self.lost(store, loss)[0] for loss in ("taken over", "resolved: release")]
        leases = [lease for pair in zip(held, gone * 4, strict=True) for lease in pair]

        assert store.renew(leases, HOUR) == set(held)

        for lease in held:
            record = self.record(store, lease)
            assert record.lease_until is not None
            assert record.lease_until - record.now > HOUR / 2

    def test_R68_every_lease_under_one_proof_is_renewed(self, store: BaseStore) -> None:
        first = self.live(store)
        again = Lease(first.request, first.fencing_token)

        assert store.renew([first, again], HOUR) == {first, again}

    def test_R69_leases_that_can_be_read_once_are_renewed(self, store: BaseStore) -> None:
        leases = [self.live(store) for _ in range(3)]

        assert store.renew(iter(leases), HOUR) == set(leases)

    def test_renewal_of_nothing_is_nothing(self, store: BaseStore) -> None:
        assert store.renew([], HOUR) == set()

    # Hostile text.

    def test_R80_long_and_hostile_error_is_kept_to_be_read(self, store: BaseStore) -> None:
        lease = self.live(store)

        store.fail(lease, "'; DROP TABLE \N{SNOWMAN}; -- {}" + "x" * 10_000)

        record = self.record(store, lease)
        assert record.state is State.FAILED
        assert record.error.startswith("'; DROP TABLE \N{SNOWMAN}; -- {}")
