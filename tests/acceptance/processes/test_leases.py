"""Leases of real processes: renewed while the process lives, new for each claim, by one clock."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.acceptance.processes.clients import Answer, Work
from tests.services.gunicorn import Gunicorn
from tests.services.processes import wait_until

pytestmark = pytest.mark.processes


def beset(server: Gunicorn, work: Work, *, leases: float) -> set[tuple[int, str | None]]:
    """
    Send duplicates while the owner is at work, until its first lease would be over so many times.

    Return what they are told; stop early when one of them runs the work.
    """
    first = work.record
    assert first.lease_until is not None
    until = first.updated_at + (first.lease_until - first.updated_at) * leases
    told: set[tuple[int, str | None]] = set()

    def over() -> bool:
        runs = len(work.attempts)
        duplicate = work.send(server)
        what = "an answer or a run"
        wait_until(lambda: duplicate.done() or len(work.attempts) > runs, seconds=10, what=what)
        if len(work.attempts) > runs:
            return True
        told.add((duplicate.result().status, duplicate.result().code))
        return work.record.now > until

    wait_until(over, seconds=10, what="the end of the first lease")
    return told


# R69. On SQLite the work of `joined` keeps the renewal out, and a successor as well.


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("separate", marks=pytest.mark.leg("postgres18", "sqlite")),
        pytest.param("joined", marks=pytest.mark.leg("postgres18")),
    ],
)
def test_R69_work_longer_than_its_lease_is_not_taken_over(serve, work, mode):
    server, work = serve(mode, lease=1), work()
    waiting = work.send(server)
    attempt = work.begun()
    claimed = work.record
    told = beset(server, work, leases=2)
    held = work.record
    attempt.go_on()
    assert told == {(409, "in_progress")}
    assert (held.epoch, held.token) == (claimed.epoch, claimed.token)
    assert waiting.result(10).status == 201
    assert (len(work.attempts), work.effects) == (1, 1)


@pytest.mark.leg("postgres18")
def test_R69_renewal_ends_with_max_duration(serve, work):
    server, work = serve("separate", lease=1, max_duration=1), work()
    work.send(server)
    attempt = work.begun()
    claimed = work.record
    work.lapsed()
    lapsed = work.record
    retry = work.run(server, 2)
    attempt.go_on()
    assert lapsed.lease_until > claimed.updated_at + timedelta(seconds=1)  # renewed before
    assert (retry.status, retry.replayed) == (201, False)


@pytest.mark.leg("sqlite")
def test_R69_on_sqlite_joined_work_keeps_a_successor_waiting_and_then_answers_it(serve, work):
    server, work = serve("joined", lease=1), work()
    waiting = work.send(server)
    attempt = work.begun()
    work.lapsed()
    duplicate = work.send(server)
    attempt.go_on()
    first = waiting.result(10)
    assert (first.status, first.replayed) == (201, False)
    assert (duplicate.result(10).replayed, duplicate.result(10).body) == (True, first.body)
    assert (len(work.attempts), work.effects) == (1, 1)


@pytest.mark.leg("postgres18")
def test_R69_workers_forked_from_a_preloaded_process_keep_their_leases(serve, work):
    server, one, two = serve("joined", kind="sync", lease=1), work("one"), work("two")
    # A sync worker has one request at a time, so these are two of the three.
    answers = [one.send(server), two.send(server)]
    attempts = [one.begun(), two.begun()]
    told = beset(server, one, leases=2)
    told.add((two.post(server).status, "in_progress"))
    for attempt in attempts:
        attempt.go_on()
    assert attempts[0].pid != attempts[1].pid
    assert told == {(409, "in_progress")}
    assert [answer.result(10).status for answer in answers] == [201, 201]


# R72: nodes whose clocks are off by ten minutes.


@pytest.mark.leg("postgres18")
@pytest.mark.parametrize("minutes", [10, -10], ids=["ahead", "behind"])
def test_R72_a_node_whose_clock_is_off_takes_over_in_time_and_holds_an_ordinary_lease(
    serve, work, minutes
):
    true, skewed, work = serve(lease=3), serve(kind="skewed", lease=3), work()
    work.kill(true)
    early = work.post(skewed, skew=minutes)
    work.lapsed()
    waiting = work.send(skewed, skew=minutes)
    attempt = work.begun(2)
    left = work.record.lease_left
    told = work.post(true)
    attempt.go_on()
    retry = waiting.result(10)
    assert (early.status, early.code) == (told.status, told.code) == (409, "in_progress")
    assert 1 <= early.retry_after <= 3
    assert 1 < left <= 3
    assert (retry.status, retry.replayed) == (201, False)
    assert work.post(true).replayed
    for answer in (early, retry):
        assert_clock_is_off(answer, minutes)


def assert_clock_is_off(answer: Answer, minutes: int) -> None:
    """Make sure that the node which answered was wrong about the time."""
    there = datetime.fromisoformat(answer.headers["X-Clock"])
    now = datetime.now(timezone.utc)
    assert abs(there - now - timedelta(minutes=minutes)) < timedelta(minutes=1)
