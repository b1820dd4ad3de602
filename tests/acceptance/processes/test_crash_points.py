"""A process dies at each point of an attempt, and a retry finds what docs/guarantees.md says."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

import django_idempotency as idempotency
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.pages import DOCS, table_of
from tests.services.forks import Forks
from tests.services.processes import wait_until

MODES = ["joined", "single", "separate"]
DIED = 42
NOTHING, CLAIMED, DONE = (0, None), (0, "IN_PROGRESS"), (1, "COMPLETED")
LEFT = {"joined": CLAIMED, "single": NOTHING, "separate": (1, "IN_PROGRESS")}
#: Where an attempt dies: the failure of the guarantees, the effects, and the state of the record.
CRASHES = {
    "before_claim": ("F1", dict.fromkeys(MODES, NOTHING)),
    "after_claim": ("F2", {**LEFT, "separate": CLAIMED}),
    "in_work": ("F3", LEFT),
    "after_work": ("F4", LEFT),
    "before_complete": ("F4", LEFT),
    "after_complete": ("F4", {"joined": CLAIMED, "single": NOTHING}),
    "after_complete (separate)": ("F5", {"separate": DONE}),
    "before_commit": ("F4", {"joined": CLAIMED, "single": NOTHING}),
    "after_commit": ("F5", {"joined": DONE, "single": DONE}),
}
TABLE = "## Transaction mode by failure"
TIMES = {"once": 1, "twice": 2, "up to twice": 2}

ATTEMPT = """
import django_idempotency as idempotency
from django_idempotency.testing import crash_at
from tests.app.models import Effect

crash = crash_at({point!r}, exit_code=42).__enter__()

def work(lease):
    Effect.objects.create(name="crash")
    if {point!r} == "in_work":
        crash()
    return "done"

idempotency.run(work, key="crash", scope="tests", transaction={mode!r})
"""


@pytest.fixture(autouse=True)
def default_store(settings: Any, transactional_db: None) -> None:
    settings.IDEMPOTENCY = {"default": {}}


def left() -> tuple[int, str | None]:
    state = IdempotencyRecord.objects.values_list("state", flat=True).first()
    return Effect.objects.count(), state


def attempt(mode: str) -> idempotency.Outcome:
    def work(lease: Any) -> str:
        Effect.objects.create(name="retry")
        return "done"

    return idempotency.run(work, key="crash", scope="tests", transaction=mode)


def retry_when_the_session_has_ended(mode: str) -> idempotency.Outcome:
    outcomes = []

    def answered() -> bool:
        try:
            outcomes.append(attempt(mode))
        except idempotency.InProgress:
            return False
        return True

    wait_until(answered, seconds=60, what="the server to end the dead session")
    return outcomes[0]


def times(failure: str, mode: str) -> int:
    """Return how often the work takes effect by the table of the guarantees."""
    rows = {row[0]: row[2:] for row in table_of(DOCS / "guarantees.md", TABLE)}
    [word] = re.findall(r"\*\*(.+?)\*\*", rows[failure][MODES.index(mode)])
    return TIMES[word]


@pytest.mark.parametrize(
    ("point", "mode", "failure", "expected"),
    [
        pytest.param(point.split()[0], mode, failure, after, id=f"{failure}-{point}-{mode}")
        for point, (failure, by_mode) in CRASHES.items()
        for mode, after in by_mode.items()
    ],
)
def test_R59_R65_I5_crash_and_retry(
    forks: Forks, point: str, mode: str, failure: str, expected: tuple[int, str | None]
) -> None:
    assert forks.run(ATTEMPT.format(point=point, mode=mode)) == DIED
    assert left() == expected
    if expected[1] == "IN_PROGRESS":
        with pytest.raises(idempotency.InProgress) as told:
            attempt(mode)
        assert 1 <= told.value.retry_after <= 30
        IdempotencyRecord.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    retry = retry_when_the_session_has_ended(mode)
    assert (retry.result, retry.replayed) == ("done", failure == "F5")
    assert Effect.objects.count() == times(failure, mode)
    assert attempt(mode).replayed
