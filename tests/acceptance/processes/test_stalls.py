"""Owners that stall past their lease and come back when a successor is at work, or has finished."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from tests.acceptance.processes.clients import Answer, Attempt, Work
from tests.services.gunicorn import Gunicorn

pytestmark = pytest.mark.processes

UNFENCED = {"IDEMPOTENCY_TEST_UNFENCED": "1"}

# On SQLite the work of `joined` and `single` keeps all other writers out: nobody can take over.
SEPARATE_AND_JOINED = [
    "separate",
    pytest.param("joined", marks=pytest.mark.leg("postgres18", "postgres16")),
]
ON_FEWER_LEGS = [
    pytest.param("separate", marks=pytest.mark.leg("postgres18", "sqlite")),
    pytest.param("joined", marks=pytest.mark.leg("postgres18")),
]
# What the late owner's work does, and what it answers.
LATE_ENDS = [
    pytest.param(
        "separate", "boom", 500, id="separate", marks=pytest.mark.leg("postgres18", "sqlite")
    ),
    pytest.param(
        "joined", "invalid", 400, id="joined-release", marks=pytest.mark.leg("postgres18")
    ),
]


@dataclass(frozen=True)
class Stalled:
    """An owner whose process stands still, and whose lease has lapsed."""

    answer: Future[Answer]
    attempt: Attempt
    server: Gunicorn

    def wake(self, then: str = "created") -> Answer:
        """Let the process run again and the work go on; return the late answer."""
        self.attempt.go_on(then)
        self.server.kill(self.attempt.pid, signal.SIGCONT)
        return self.answer.result(10)


def stall(server: Gunicorn, work: Work) -> Stalled:
    """Stop the owner's process until its lease has lapsed: what renews it stands still, too."""
    answer = work.send(server)
    attempt = work.begun()
    server.kill(attempt.pid, signal.SIGSTOP)
    work.lapsed()
    return Stalled(answer, attempt, server)


@dataclass(frozen=True)
class Seen:
    """What came of an owner that stalled and a successor that completed meanwhile."""

    late: Answer
    successor: Answer
    retry: Answer
    effects: int

    def violations(self, *, effects: int) -> set[str]:
        """What of R66 does not hold, where so many rows may stand."""
        found = set()
        if (self.successor.status, self.successor.replayed) != (201, False):
            found.add("the successor did not complete")
        if (self.late.status, self.late.code) != (409, "lease_lost"):
            found.add("the late owner was not refused")
        if not self.retry.replayed or self.retry.body != self.successor.body:
            found.add("the stored result is not the successor's")
        if self.effects != effects:
            found.add(f"{self.effects} effects")
        return found


def overtaken(server: Gunicorn, work: Work) -> Seen:
    """Stall an owner, let a successor take over and complete, and wake the owner."""
    stalled = stall(server, work)
    successor = work.run(server, 2)
    late = stalled.wake()
    return Seen(late, successor, work.post(server), work.effects)


@pytest.mark.parametrize("mode", SEPARATE_AND_JOINED)
def test_R66_a_late_owner_is_refused_and_the_successors_result_stands(serve, work, mode):
    server = serve(mode, lease=1, app="tests.acceptance.processes.unfenced_wsgi:application")
    seen = overtaken(server, work())
    # `separate` cannot take back what the late owner had done before it stalled.
    assert seen.violations(effects=1 if mode == "joined" else 2) == set()


@pytest.mark.parametrize("mode", ON_FEWER_LEGS)
def test_R66_fails_with_the_fence_taken_out_of_the_sql(serve, work, mode):
    app = "tests.acceptance.processes.unfenced_wsgi:application"
    seen = overtaken(serve(mode, lease=1, app=app, env=UNFENCED), work())
    expected = {"the late owner was not refused", "the stored result is not the successor's"}
    if mode == "joined":
        expected |= {"2 effects"}
    assert seen.violations(effects=1 if mode == "joined" else 2) == expected


@pytest.mark.leg("postgres18")
def test_R66_with_single_a_stalled_owner_keeps_its_key_and_finishes(serve, work):
    server, work = serve("single", lease=1), work()
    waiting = work.send(server)
    attempt = work.begun()
    server.kill(attempt.pid, signal.SIGSTOP)
    meanwhile = work.post(server)
    server.kill(attempt.pid, signal.SIGCONT)
    attempt.go_on()
    late = waiting.result(10)
    assert (meanwhile.status, meanwhile.code, meanwhile.retry_after) == (409, "in_progress", 1)
    assert (late.status, late.replayed) == (201, False)
    assert work.effects == 1


@pytest.mark.parametrize(("mode", "then", "status"), LATE_ENDS)
def test_R67_a_late_end_does_not_touch_the_successors_claim(serve, work, mode, then, status):
    server, work = serve(mode, lease=1, renew=False), work()
    stalled = stall(server, work)
    waiting = work.send(server)
    successor = work.begun(2)
    claimed = work.record
    late = stalled.wake(then)
    untouched = work.record
    successor.go_on()
    assert late.status == status
    assert untouched.state == claimed.state == "IN_PROGRESS"
    for field in ("epoch", "token", "lease_until", "fingerprint", "updated_at", "expires_at"):
        assert getattr(untouched, field) == getattr(claimed, field), field
    assert waiting.result(10).status == 201


@pytest.mark.parametrize(("mode", "then", "status"), LATE_ENDS)
def test_R67_a_late_end_does_not_touch_the_successors_result(serve, work, mode, then, status):
    server, work = serve(mode, lease=1), work()
    stalled = stall(server, work)
    successor = work.run(server, 2)
    late = stalled.wake(then)
    retry = work.post(server)
    assert (late.status, successor.status) == (status, 201)
    assert (retry.status, retry.replayed, retry.body) == (201, True, successor.body)
