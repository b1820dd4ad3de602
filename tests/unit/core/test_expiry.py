"""Leases that lapse and records that expire, on a memory store whose clock is the test's."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta

import pytest

import django_idempotency as idempotency
from django_idempotency import FingerprintMismatch, InProgress, LeaseLost
from django_idempotency.records import State

DAY = 24 * 3600


def run(func, key="k", **arguments):
    return idempotency.run(func, key=key, scope="s", **arguments)


def never(lease):
    pytest.fail("ran")


@pytest.fixture(autouse=True)
def store(memory):
    return memory


@pytest.fixture
def begin(store):
    """Claim and stay in progress until the test has ended; return the lease."""
    with ExitStack() as stack:

        def enter(**arguments):
            attempt = idempotency.attempt(key="k", scope="s", **arguments)
            return stack.enter_context(attempt).lease

        yield enter


class TestLease:
    @pytest.mark.parametrize(
        ("passed", "retry_after"),
        [(0, 1), (0.03, 1), (1.2, 2), (10, 10), (29.5, 30), (31, 29), (58.5, 2), (59.9, 1)],
    )
    def test_R49_retry_after_is_how_long_it_has_been_running_and_at_most_what_is_left(
        self, begin, clock, passed, retry_after
    ):
        begin()
        clock.tick(passed)
        with pytest.raises(InProgress) as caught:
            run(never)
        assert caught.value.retry_after == retry_after
        assert caught.value.stale is False
        assert caught.value.record.state is State.IN_PROGRESS

    @pytest.mark.parametrize("came", [0.01, 0.5, 0.99, 1.01, 1.5, 1.99])
    def test_R49_a_duplicate_of_work_of_2_s_is_back_within_4(self, clock, came):
        with idempotency.attempt(key="k", scope="s") as attempt:
            clock.tick(came)
            passed = came
            while passed < 2:
                with pytest.raises(InProgress) as told:
                    run(never)
                clock.tick(told.value.retry_after)
                passed += told.value.retry_after
            attempt.complete("A")
        assert run(never).result == "A"
        assert passed < 4

    def test_R49_30_at_most_and_no_end_of_it_that_is_not_known(self, begin, clock):
        begin(lease=3600)
        clock.tick(1000)
        with pytest.raises(InProgress) as told:
            run(never)
        assert told.value.retry_after == 30
        assert told.value.record.running_for == 1000

    def test_R65_R70_a_lapsed_lease_is_taken_over_with_the_same_payload(self, begin, clock):
        begin(payload=1)
        clock.tick(59.999)
        with pytest.raises(InProgress):
            run(never, payload=1)
        clock.tick(0.001)
        with pytest.raises(FingerprintMismatch):
            run(never, payload=2)
        assert run(lambda lease: "B", payload=1).result == "B"

    def test_an_owner_may_complete_late_as_long_as_nobody_took_over(self, clock):
        def slow(lease):
            clock.tick(3600)
            return "late"

        assert run(slow).result == "late"
        assert run(never).replayed


class TestRefuse:
    def test_R71_a_lapsed_lease_is_stale_until_an_operator_decides(self, begin, clock):
        begin(on_stale="refuse", payload=1)
        for passed, stale in ((59, False), (1, True), (100 * DAY, True)):
            clock.tick(passed)
            with pytest.raises(InProgress) as caught:
                run(never, on_stale="refuse", payload=1)
            assert caught.value.stale is stale
            with pytest.raises(FingerprintMismatch):
                run(never, on_stale="refuse", payload=2)

    def test_R71_in_progress_it_does_not_expire_and_once_ended_as_any_record(
        self, begin, store, clock
    ):
        lease = begin(on_stale="refuse")
        clock.tick(1000 * DAY)
        assert (store.get(lease.record_id).expires_at, store.sweep()) == (None, 0)
        outcome = run(lambda lease: "A", key="other", on_stale="refuse", retention=100)
        assert outcome.expires_at == clock.now + timedelta(seconds=100)


class TestRetention:
    def test_R73_it_counts_from_the_completion_and_no_replay_extends_it(self, clock):
        def slow(lease):
            clock.tick(50)

        outcome = run(slow, retention=100)
        assert outcome.expires_at == clock.now + timedelta(seconds=100)
        for passed in (60, 39.999):
            clock.tick(passed)
            assert run(never, retention=100).replayed
        clock.tick(0.001)
        assert run(lambda lease: "B", retention=100).result == "B"

    @pytest.mark.parametrize("swept", [True, False], ids=["swept", "not swept"])
    @pytest.mark.parametrize("payload", [1, 2], ids=["same payload", "other payload"])
    def test_R74_after_it_a_new_run(self, store, clock, swept, payload):
        first = run(lambda lease: "A", payload=1, retention=100)
        clock.tick(100)
        if swept:
            assert store.sweep() == 1
        second = run(lambda lease: "B", payload=payload, retention=100)
        assert (second.result, second.replayed) == ("B", False)
        assert second.fencing_token > first.fencing_token
        assert store.get(second.record_id).attempts == 1
        assert run(never, payload=payload).result == "B"

    def test_the_owner_of_an_expired_and_reclaimed_record_has_lost_it(self, clock):
        def stalled(lease):
            clock.tick(3 * DAY)
            assert run(lambda lease: "B", payload=2).result == "B"
            return "A"

        with pytest.raises(LeaseLost):
            run(stalled, payload=1)
        assert run(never, payload=2).result == "B"

    def test_R60_R76_swept_while_its_owner_works(self, store, clock):
        def stalled(lease):
            clock.tick(100 * DAY)
            assert store.sweep() == 1

        assert not run(stalled).stored
        assert run(lambda lease: "B").result == "B"
