"""The crash rows of docs/guarantees.md: a process dies at each point, and a retry follows."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

import django_idempotency as idempotency
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.crash import DIED, POINTS
from tests.pages import DOCS, table_of
from tests.services.processes import spawn, wait_until

MODES = ["joined", "single", "separate"]
#: Where each failure of the table is, for the modes that it says anything of.
FAILURES = {
    "F1": {mode: ["before_claim"] for mode in MODES},
    "F2": {mode: ["after_claim"] for mode in MODES},
    "F3": {mode: ["in_work"] for mode in MODES},
    "F4": {
        "joined": ["after_work", "after_completion"],
        "single": ["after_work", "after_completion"],
        "separate": ["after_work"],
    },
    "F5": {
        "joined": ["after_commit"],
        "single": ["after_commit"],
        "separate": ["after_completion", "after_commit"],
    },
}
TIMES = {"once": 1, "twice": 2, "up to twice": 2}


def times(failure: str, mode: str) -> int:
    """Return how often the work takes effect by the table."""
    rows = {row[0]: row[2:] for row in table_of(DOCS / "guarantees.md", TABLE)}
    [word] = re.findall(r"\*\*(.+?)\*\*", rows[failure][MODES.index(mode)])
    return TIMES[word]


TABLE = "## Transaction mode by failure"
CRASHES = [
    pytest.param(failure, point, mode, id=f"{failure}-{point}-{mode}")
    for failure, by_mode in FAILURES.items()
    for mode, points in by_mode.items()
    for point in points
]


@pytest.fixture(autouse=True)
def default_store(settings: Any) -> None:
    settings.IDEMPOTENCY = {"default": {}}


def crash(point: str, mode: str, environment: dict[str, str]) -> None:
    process = spawn([sys.executable, "-m", "tests.crash", point, mode], env=environment)
    assert process.wait(30) == DIED


def attempt(mode: str) -> idempotency.Outcome:
    def work(lease: Any) -> str:
        Effect.objects.create(name="retry")
        return "done"

    return idempotency.run(work, key="crash", scope="tests", transaction=mode)


def attempt_when_the_session_has_ended() -> idempotency.Outcome:
    outcomes = []

    def answered() -> bool:
        try:
            outcomes.append(attempt("single"))
        except idempotency.InProgress:
            return False
        return True

    wait_until(answered, seconds=5, what="the server to end the dead session")
    return outcomes[0]


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("failure", "point", "mode"), CRASHES)
def test_R59_R65_I5_crash_and_retry(
    process_environment: dict[str, str], failure: str, point: str, mode: str
) -> None:
    crash(point, mode, process_environment)

    if mode == "single":
        retry = attempt_when_the_session_has_ended()
    elif failure in ("F1", "F5"):
        retry = attempt(mode)
    else:
        with pytest.raises(idempotency.InProgress) as told:
            attempt(mode)
        assert 1 <= told.value.retry_after <= 30
        past = timezone.now() - timedelta(seconds=1)
        IdempotencyRecord.objects.update(lease_until=past)
        retry = attempt(mode)

    assert (retry.result, retry.replayed) == ("done", failure == "F5")
    assert Effect.objects.count() == times(failure, mode)
    assert attempt(mode).replayed


def test_every_point_is_in_every_mode() -> None:
    covered = {(point, mode) for _, point, mode in (crash.values for crash in CRASHES)}
    assert covered == {(point, mode) for point in POINTS for mode in MODES}
