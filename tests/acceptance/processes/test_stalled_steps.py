"""Owners that stall in a step or a call past their lease, and come back (P10, P11)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import django_idempotency as idempotency
from django_idempotency.records import State
from tests.acceptance.processes.checkout import Checkout, effects
from tests.acceptance.processes.test_steps import in_journal, record_of, resume
from tests.services.databases import environment_for_children
from tests.services.processes import ROOT, wait_until

# On SQLite a step keeps all other writers out: nobody can take over.
pytestmark = [pytest.mark.processes, pytest.mark.leg("postgres18", "mariadb")]

#: How an owner ends that has lost its lease.
LEASE_LOST = 7
OWNER = """
import sys
import django
django.setup()
import django_idempotency as idempotency
from tests.acceptance.processes.checkout import Checkout
try:
    {checkout!r}.run()
except idempotency.LeaseLost:
    sys.exit(7)
"""
PIECES = ("order", "charge", "paid")


@pytest.fixture(autouse=True)
def default_store(settings: Any, transactional_db: None) -> None:
    settings.IDEMPOTENCY = {"default": {}}


class Owner:
    """A process whose attempt has stopped."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wakes(self) -> int:
        """Let it go on to its end; return its exit code."""
        self._process.send_signal(signal.SIGCONT)
        return self._process.wait(60)


@contextmanager
def stalled(point: str, piece: str, uncertain: str = "repeat") -> Iterator[Owner]:
    """Stop an owner at this place until its lease has lapsed; it ends with the block."""
    checkout = Checkout(PIECES, uncertain, piece=piece, point=point, stops=True, lease=1)
    command = [sys.executable, "-c", OWNER.format(checkout=checkout)]
    env = {**os.environ, **environment_for_children()}
    with subprocess.Popen(command, cwd=ROOT, env=env) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            wait_until(lambda: record_of("k").stale, seconds=30, what="the end of the lease")
            yield Owner(process)
        finally:
            process.kill()


def times() -> list[int]:
    """How often each piece was done."""
    left = effects()
    return [left.count(piece) for piece in PIECES]


@pytest.mark.parametrize(("piece", "calls"), [("order", 1), ("paid", 1), ("charge", 2)])
def test_P10_a_late_note_is_refused_and_its_work_undone(piece: str, calls: int) -> None:
    with stalled("in", piece) as owner:
        result = Checkout(PIECES, "repeat").run()
        assert owner.wakes() == LEASE_LOST

    assert result == ["order", "made", "paid"]
    assert times() == [1, calls, 1]
    assert record_of("k").state is State.COMPLETED


@pytest.mark.parametrize("point", ["after_intent", "in"])
def test_P10_a_call_is_uncertain_for_others_and_stays_so_when_its_late_note_is_refused(
    point: str,
) -> None:
    checkout = Checkout(PIECES, "refuse")
    with stalled(point, "charge", "refuse") as owner:
        with pytest.raises(idempotency.Uncertain):
            checkout.run()
        assert owner.wakes() == LEASE_LOST

    with pytest.raises(idempotency.Uncertain):
        checkout.run()
    assert in_journal(checkout) == (["order"], ["charge"])
    assert resume("k", "charge", "told")
    assert (checkout.run(), times()) == (["order", "told", "paid"], [1, 1, 1])


@pytest.mark.parametrize(
    ("point", "uncertain", "result", "calls"),
    [
        ("in", "ask", "found", 1),
        ("in", "void", "found", 1),
        # The hazard: the function has asked before the owner calls, and both do.
        ("after_intent", "ask", "made", 2),
        # The function has closed the first call, and the next one has another key.
        ("after_intent", "void", "made", 1),
    ],
)
def test_P10_a_function_decides_by_what_the_gateway_says_at_that_moment(
    point: str, uncertain: str, result: str, calls: int
) -> None:
    with stalled(point, "charge", uncertain) as owner:
        assert Checkout(PIECES, uncertain).run() == ["order", result, "paid"]
        assert owner.wakes() == LEASE_LOST

    assert times() == [1, calls, 1]


def test_P11_nobody_takes_over_between_note_and_commit() -> None:
    with stalled("after_note", "order") as owner:
        for _ in range(2):
            with pytest.raises(idempotency.InProgress):
                idempotency.run(lambda lease: 1, key="k", scope="s", transaction="steps")
        assert owner.wakes() == 0

    assert effects() == ["order", "charge", "paid"]
    assert record_of("k").state is State.COMPLETED
