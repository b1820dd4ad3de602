"""Owners that stall past their lease and come back when a successor is at work, or has finished."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.acceptance.processes.clients import SECONDS, Answer, Work
from tests.services.gunicorn import Gunicorn

pytestmark = pytest.mark.processes

# On SQLite the work of `joined` and `single` keeps all other writers out: nobody can take over.
JOINED = pytest.param("joined", marks=pytest.mark.leg("postgres18"))


def stall(server: Gunicorn, work: Work) -> Callable[..., Answer]:
    """
    Stop the owner's process until its lease has lapsed: what renews it stands still, too.

    Return what wakes it, and lets its work go on to its late answer.
    """
    answer = work.send(server)
    attempt = work.begun()
    server.kill(attempt.pid, signal.SIGSTOP)
    work.lapsed()

    def wake(then: str = "created") -> Answer:
        attempt.go_on(then)
        server.kill(attempt.pid, signal.SIGCONT)
        return answer.result(SECONDS)

    return wake


def overtaken(server: Gunicorn, work: Work, then: str = "created") -> list[Answer]:
    """Stall an owner, let a successor complete, wake it: its answer, the successor's, a retry's."""
    wake = stall(server, work)
    successor = work.run(server, 2)
    assert (successor.status, successor.replayed) == (201, False)
    return [wake(then), successor, work.post(server)]


@pytest.mark.parametrize("unfenced", [False, True], ids=["", "unfenced"])
@pytest.mark.parametrize("mode", ["separate", JOINED])
def test_R66_a_late_owner_is_refused_and_the_successors_result_stands(serve, work, mode, unfenced):
    """And it can fail: without renewal and the SQL's fence, the late owner comes through."""
    work = work()
    server = serve(mode, lease=1, renew=not unfenced, unfenced=unfenced)
    late, successor, retry = overtaken(server, work)
    assert ((late.status, late.code) != (409, "lease_lost")) == unfenced
    assert retry.replayed
    assert (retry.body == successor.body) != unfenced
    # `separate` cannot take back what the late owner had done before it stalled.
    assert work.effects == (1 if mode == "joined" and not unfenced else 2)


@pytest.mark.leg("postgres18")
def test_R66_with_single_a_stalled_owner_keeps_its_key_and_finishes(serve, work):
    server, work = serve("single", lease=1), work()
    waiting = work.send(server)
    attempt = work.begun()
    server.kill(attempt.pid, signal.SIGSTOP)
    meanwhile = work.post(server)
    server.kill(attempt.pid, signal.SIGCONT)
    attempt.go_on()
    late = waiting.result(SECONDS)
    assert (meanwhile.status, meanwhile.code, meanwhile.retry_after) == (409, "in_progress", 1)
    assert (late.status, late.replayed, work.effects) == (201, False, 1)


@pytest.mark.parametrize(
    ("mode", "then", "status"),
    [
        pytest.param("separate", "boom", 500, marks=pytest.mark.leg("postgres18", "sqlite")),
        pytest.param("joined", "invalid", 400, marks=pytest.mark.leg("postgres18")),
    ],
)
def test_R67_a_late_end_does_not_touch_the_successors_result(serve, work, mode, then, status):
    late, successor, retry = overtaken(serve(mode, lease=1), work(), then)
    assert late.status == status
    assert (retry.status, retry.replayed, retry.body) == (201, True, successor.body)
