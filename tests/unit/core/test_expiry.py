"""Leases that lapse and records that expire, on a memory store whose clock is the test's."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta

import pytest

from django_idempotency import FingerprintMismatch, InProgress
from django_idempotency.records import State
from tests.unit.core.conftest import begin, kept, never, run

DAY = 24 * 3600

pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture
def in_progress():
    """Claim and stay in progress until the test has ended; return the lease."""
    with ExitStack() as stack:
        yield lambda **arguments: stack.enter_context(begin(**arguments)).lease


def test_R49_retry_after_is_how_long_it_has_been_running_and_at_most_what_is_left(
    in_progress, clock
):
    """And 30 seconds at most."""
    for lease, passed, retry_after in (
        *((60, 0, 1), (60, 1.2, 2), (60, 29.5, 30), (60, 31, 29), (3600, 1000, 30)),
    ):
        key = f"{lease} {passed}"
        in_progress(key=key, lease=lease)
        clock.advance(passed)
        with pytest.raises(InProgress) as told:
            run(never, key)
        assert (told.value.retry_after, told.value.stale) == (retry_after, False)
        assert told.value.record.state is State.IN_PROGRESS
        assert told.value.record.running_for == passed


def test_R65_R70_a_lapsed_lease_is_taken_over_with_the_same_payload(in_progress, clock):
    in_progress(payload=1)
    clock.advance(59.999)
    with pytest.raises(InProgress):
        run(never, payload=1)
    clock.advance(0.001)
    with pytest.raises(FingerprintMismatch):
        run(never, payload=2)
    assert run(lambda lease: "B", payload=1).result == "B"


def test_R66_R74_an_owner_may_complete_late_and_what_is_swept_is_not_stored(memory, clock):
    def slow(lease):
        clock.advance(3600)
        return "late"

    def swept(lease):
        clock.advance(100 * DAY)
        memory.sweep()

    assert run(slow).result == "late"
    assert run(never).replayed
    assert not run(swept, "swept").stored


def test_R71_refused_a_lapsed_lease_is_stale_until_an_operator_decides(in_progress, clock, memory):
    refusing = {"on_stale": "refuse"}
    lease = in_progress(payload=1, **refusing)
    for passed, stale in ((59, False), (1, True), (100 * DAY, True)):
        clock.advance(passed)
        with pytest.raises(InProgress) as caught:
            run(never, payload=1, **refusing)
        assert caught.value.stale is stale
        with pytest.raises(FingerprintMismatch):
            run(never, payload=2, **refusing)
    assert (memory.get(lease.record_id).expires_at, memory.sweep()) == (None, 0)
    outcome = run(lambda lease: "A", key="other", retention=100, **refusing)
    assert outcome.expires_at == clock() + timedelta(seconds=100)


def test_R73_R74_retention_counts_from_the_completion_and_no_replay_extends_it(clock):
    first = run(lambda lease: clock.advance(50) and None, payload=1, retention=100)
    assert first.expires_at == clock() + timedelta(seconds=100)
    for passed in (60, 39.999):
        clock.advance(passed)
        assert run(never, payload=1, retention=100).expires_at == first.expires_at
    clock.advance(0.001)
    second = run(lambda lease: "B", payload=2)
    assert (second.result, second.replayed, kept().attempts) == ("B", False, 1)
    assert second.fencing_token > first.fencing_token
