"""Processes that die in the middle of the work, or right after it, and the retry that follows."""

from __future__ import annotations

import math
import signal

import pytest

from tests.acceptance.processes.clients import Answer, Work
from tests.services.gunicorn import Gunicorn
from tests.services.processes import wait_until

pytestmark = pytest.mark.processes

MODES = ["single", "joined", "separate"]
# The settings of the tests give ATOMIC_REQUESTS to every alias, so both databases must be there.
BOTH = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def killed(server: Gunicorn, work: Work) -> None:
    """Send the request, and kill the very process that does its work."""
    waiting = work.send(server)
    server.kill(work.begun().pid, signal.SIGKILL)
    with pytest.raises(ConnectionError):
        waiting.result(10)


# In the middle of the work, with a lease.


@pytest.mark.parametrize("mode", ["joined", "separate"])
def test_R65_after_a_kill_a_retry_within_the_lease_is_told_to_come_again_within_the_rest(
    serve, work, mode
):
    server, work = serve(mode, lease=20), work()
    killed(server, work)
    before = work.record.lease_left
    answer = work.post(server)
    after = work.record.lease_left
    assert (answer.status, answer.code) == (409, "in_progress")
    assert 0 < after <= before <= 20
    assert 1 <= answer.retry_after <= math.ceil(before)


@pytest.mark.parametrize(
    ("mode", "atomic_requests"),
    [("joined", False), ("separate", False), pytest.param("separate", True, marks=BOTH)],
)
def test_R65_after_a_kill_and_the_lease_a_retry_runs_once(serve, work, mode, atomic_requests):
    server, work = serve(mode, lease=1, atomic_requests=atomic_requests), work()
    killed(server, work)
    work.lapsed()
    retry = work.run(server, 2)
    again = work.post(server)
    assert (retry.status, retry.replayed) == (201, False)
    assert (again.status, again.replayed, again.body) == (201, True, retry.body)
    # Without a transaction around them the rows of the one that died stand (`separate`).
    assert work.effects == (2 if mode == "separate" and not atomic_requests else 1)


@BOTH
def test_R65_single_after_a_kill_a_retry_runs_as_soon_as_the_session_has_ended(serve, work):
    server, work = serve("single", lease=600, atomic_requests=True), work()
    killed(server, work)
    told: list[Answer] = []

    def runs() -> bool:
        retry = work.send(server)
        wait_until(lambda: retry.done() or len(work.attempts) == 2, seconds=10, what="an answer")
        if len(work.attempts) == 2:
            work.begun(2).go_on()
        told.append(retry.result(10))
        return told[-1].status != 409

    wait_until(runs, seconds=3, what="the dead session's end")
    assert [(answer.code, answer.retry_after) for answer in told[:-1]] == [
        ("in_progress", 1) for _ in told[:-1]
    ]
    assert (told[-1].status, told[-1].replayed) == (201, False)
    assert work.effects == 1


# Right after the answer.


@pytest.mark.leg("postgres18", "sqlite")
@pytest.mark.parametrize("mode", MODES)
def test_R59_killed_right_after_the_answer_was_read_a_retry_replays(serve, work, mode):
    server, work = serve(mode), work()
    waiting = work.send(server)
    attempt = work.begun()
    attempt.go_on()
    first = waiting.result(10)
    server.kill(attempt.pid, signal.SIGKILL)
    retry = work.post(server)
    assert first.status == 201
    assert (retry.status, retry.replayed, retry.body) == (201, True, first.body)
    assert work.effects == 1


# A stop that gives notice.


@pytest.mark.leg("postgres18")
def test_R25_a_graceful_stop_lets_the_work_finish_and_its_answer_is_kept(serve, work):
    server, work = serve("joined", own=True), work()
    waiting = work.send(server)
    attempt = work.begun()
    server.kill(server.pid, signal.SIGTERM)
    wait_until(lambda: len(server.worker_pids()) == 1, seconds=5, what="the idle worker to end")
    attempt.go_on()
    first = waiting.result(10)
    retry = work.post(serve("joined"))
    assert (first.status, first.replayed) == (201, False)
    assert (retry.status, retry.replayed, retry.body) == (201, True, first.body)
    assert work.effects == 1


@pytest.mark.leg("postgres18")
@pytest.mark.parametrize("mode", ["single", "joined"])
def test_R58_a_stop_that_ends_the_work_rolls_it_back_and_frees_the_key_at_once(serve, work, mode):
    server, work = serve(mode, lease=600, worker_class="sync", threads=1), work()
    waiting = work.send(server)
    # In a sync worker this raises SystemExit in the middle of the work.
    server.kill(work.begun().pid, signal.SIGQUIT)
    ended = waiting.result(10)
    retry = work.run(server, 2)
    assert ended.status == 500
    assert (retry.status, retry.replayed) == (201, False)
    assert work.effects == 1
