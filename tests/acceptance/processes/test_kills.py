"""Processes that die in the middle of the work, or right after it, and the retry that follows."""

from __future__ import annotations

import math
import signal

import pytest

from tests.acceptance.processes.clients import SECONDS
from tests.services.processes import wait_until

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("mode", ["joined", "separate"])
def test_R65_after_a_kill_a_retry_within_the_lease_is_told_to_come_again_within_the_rest(
    serve, work, mode
):
    server, work = serve(mode, lease=20), work()
    work.kill(server)
    before = work.record.lease_left
    answer = work.post(server)
    after = work.record.lease_left
    assert (answer.status, answer.code) == (409, "in_progress")
    assert 0 < after <= before <= 20
    assert 1 <= answer.retry_after <= math.ceil(before)


@pytest.mark.parametrize(
    ("mode", "atomic_requests"), [("joined", False), ("separate", False), ("separate", True)]
)
def test_R65_after_a_kill_and_the_lease_a_retry_runs_once(serve, work, mode, atomic_requests):
    server, work = serve(mode, lease=1, ATOMIC_REQUESTS=atomic_requests), work()
    work.kill(server)
    work.lapsed()
    retry = work.run(server, 2)
    again = work.post(server)
    assert (retry.status, retry.replayed) == (201, False)
    assert (again.status, again.replayed, again.body) == (201, True, retry.body)
    # Without a transaction around them the rows of the one that died stand (`separate`).
    assert work.effects == (2 if mode == "separate" and not atomic_requests else 1)


def run_as_soon_as_the_key_is_free(server, work):
    """Retry until the work runs, long before the lease would be over; return all answers."""
    told = []

    def runs():
        retry = work.send(server)
        wait_until(
            lambda: retry.done() or len(work.attempts) == 2, seconds=SECONDS, what="an answer"
        )
        if len(work.attempts) == 2:
            work.begun(2).go_on()
        told.append(retry.result(SECONDS))
        return told[-1].status != 409

    wait_until(runs, seconds=SECONDS, what="the dead session's end")
    return told


def test_R65_single_after_a_kill_a_retry_runs_as_soon_as_the_session_has_ended(serve, work):
    server, work = serve("single", lease=600, ATOMIC_REQUESTS=True), work()
    work.kill(server)
    *refused, ran = run_as_soon_as_the_key_is_free(server, work)
    assert {(answer.code, answer.retry_after) for answer in refused} <= {("in_progress", 1)}
    assert (ran.status, ran.replayed, work.effects) == (201, False, 1)


@pytest.mark.leg("postgres18", "sqlite")
@pytest.mark.parametrize("mode", ["single", "joined", "separate"])
def test_R59_killed_right_after_the_answer_was_read_a_retry_replays(serve, work, mode):
    server, work = serve(mode), work()
    first = work.run(server, 1)
    server.kill(work.begun().pid, signal.SIGKILL)
    retry = work.post(server)
    assert first.status == 201
    assert (retry.status, retry.replayed, retry.body) == (201, True, first.body)
    assert work.effects == 1
