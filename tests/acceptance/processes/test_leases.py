"""Leases of real processes: renewed while the process lives, new for each claim, by one clock."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.acceptance.processes.clients import SECONDS, Answer, Work
from tests.services.gunicorn import Gunicorn
from tests.services.processes import wait_until

pytestmark = pytest.mark.processes


#: Seconds of a lease that is renewed in time also by a process that stands still for two of them.
LEASE = 4


def beset(server: Gunicorn, work: Work) -> set[tuple[int, str | None]]:
    """
    Send duplicates while the owner is at work, until its first lease would be over.

    Return what they are told, the last of them after it; stop early when one runs the work.
    """
    until = work.record.updated_at + timedelta(seconds=1.1 * LEASE)
    told: set[tuple[int, str | None]] = set()

    def over() -> bool:
        runs, is_last = len(work.attempts), work.record.now > until
        duplicate = work.send(server)
        what = "an answer or a run"
        wait_until(
            lambda: duplicate.done() or len(work.attempts) > runs, seconds=SECONDS, what=what
        )
        if len(work.attempts) > runs:
            return True
        told.add((duplicate.result().status, duplicate.result().code))
        return is_last

    wait_until(over, seconds=SECONDS, what="the end of the first lease")
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
    server, work = serve(mode, lease=LEASE), work()
    waiting = work.send(server)
    attempt = work.begun()
    claimed = work.record
    told = beset(server, work)
    held = work.record
    attempt.go_on()
    assert told == {(409, "in_progress")}
    assert (held.epoch, held.token) == (claimed.epoch, claimed.token)
    assert waiting.result(SECONDS).status == 201
    assert (len(work.attempts), work.effects) == (1, 1)


@pytest.mark.leg("postgres18")
def test_R69_renewal_ends_with_max_duration(serve, work):
    server, work = serve("separate", lease=LEASE, max_duration=LEASE), work()
    work.send(server)
    attempt = work.begun()
    claimed = work.record
    work.lapsed()
    lapsed = work.record
    retry = work.run(server, 2)
    attempt.go_on()
    assert lapsed.lease_until > claimed.updated_at + timedelta(seconds=LEASE)  # renewed before
    assert (retry.status, retry.replayed) == (201, False)


@pytest.mark.leg("sqlite")
def test_R69_on_sqlite_joined_work_keeps_a_successor_waiting_and_then_answers_it(serve, work):
    server, work = serve("joined", lease=1), work()
    waiting = work.send(server)
    attempt = work.begun()
    work.lapsed()
    duplicate = work.send(server)
    attempt.go_on()
    first = waiting.result(SECONDS)
    assert (first.status, first.replayed) == (201, False)
    assert (duplicate.result(SECONDS).replayed, duplicate.result(SECONDS).body) == (
        True,
        first.body,
    )
    assert (len(work.attempts), work.effects) == (1, 1)


@pytest.mark.leg("postgres18")
def test_R69_workers_forked_from_a_preloaded_process_keep_their_leases(serve, work):
    server, one, two = serve("joined", kind="sync", lease=LEASE), work("one"), work("two")
    # A sync worker has one request at a time, so these are two of the three.
    answers = [one.send(server), two.send(server)]
    attempts = [one.begun(), two.begun()]
    told = beset(server, one)
    told.add((two.post(server).status, "in_progress"))
    for attempt in attempts:
        attempt.go_on()
    assert attempts[0].pid != attempts[1].pid
    assert told == {(409, "in_progress")}
    assert [answer.result(SECONDS).status for answer in answers] == [201, 201]


# R72: nodes whose clocks are off by ten minutes.


@pytest.mark.leg("postgres18")
@pytest.mark.parametrize("minutes", [10, -10], ids=["ahead", "behind"])
def test_R72_a_node_whose_clock_is_off_takes_over_in_time_and_holds_an_ordinary_lease(
    serve, work, minutes
):
    true, skewed, work = serve(lease=20), serve(kind="skewed", lease=20), work()
    work.kill(true)
    early = work.post(skewed, skew=minutes)
    work.lapse()
    waiting = work.send(skewed, skew=minutes)
    attempt = work.begun(2)
    left = work.record.lease_left
    told = work.post(true)
    attempt.go_on()
    retry = waiting.result(SECONDS)
    assert (early.status, early.code) == (told.status, told.code) == (409, "in_progress")
    assert 1 <= early.retry_after <= 20
    assert 0 < left <= 20
    assert (retry.status, retry.replayed) == (201, False)
    assert work.post(true).replayed
    for answer in (early, retry):
        assert_clock_is_off(answer, minutes)


def assert_clock_is_off(answer: Answer, minutes: int) -> None:
    """Make sure that the node which answered was wrong about the time."""
    there = datetime.fromisoformat(answer.headers["X-Clock"])
    now = datetime.now(timezone.utc)
    assert abs(there - now - timedelta(minutes=minutes)) < timedelta(minutes=1)
