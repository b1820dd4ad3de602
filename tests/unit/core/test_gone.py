"""A record that is gone in mid-work is nobody else's: its completion cannot be written (R60)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import django_idempotency as idempotency
from django_idempotency.conf import store_for
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.memory import MemoryStore
from tests.unit.core.conftest import Work


def forget() -> str:
    """Delete all records, and be the work's result."""
    store = store_for()
    if isinstance(store, MemoryStore):
        store._records.clear()
    else:
        IdempotencyRecord.objects.all().delete()
    return "done"


def run(work: Any, **arguments: Any) -> idempotency.Outcome:
    return idempotency.run(work, key="k", scope="s", **arguments)


@pytest.mark.parametrize("caller", ["run", "arun", "attempt"])
def test_R60_separate_work_whose_record_is_gone_is_answered_and_says_so(
    separate_mode: str,
    work: type[Work],
    in_loop: Callable[..., Any],
    caller: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = work(forget)

    if caller == "run":
        outcome = run(job)
    elif caller == "arun":
        outcome = in_loop(lambda: idempotency.arun(job.asynchronous, key="k", scope="s"))
    else:
        with idempotency.attempt(key="k", scope="s") as attempt:
            attempt.complete(job(None))
        outcome = attempt.outcome

    assert (outcome.result, outcome.replayed, outcome.stored) == ("done", False, False)
    assert [entry.levelno for entry in caplog.records] == [logging.ERROR]
    assert "is gone from the store" in caplog.text
    assert run(work("again")).result == "again"


def test_R60_joined_work_whose_record_is_gone_is_rolled_back(
    settings: Any, transactional_db: None, work: type[Work], caplog: pytest.LogCaptureFixture
) -> None:
    settings.IDEMPOTENCY = {"default": {"BACKEND": "tests.unit.http.stores.Vanishing"}}
    job = work("done")

    with pytest.raises(idempotency.LeaseLost) as raised:
        run(job)

    assert raised.value.gone
    assert job.effects == 0
    assert [entry.levelno for entry in caplog.records] == [logging.ERROR]
    assert "store unavailable" in caplog.text
    settings.IDEMPOTENCY = {}
    assert not run(job).replayed
    assert run(job).replayed
    assert job.effects == 1


def test_R60_single_work_writes_a_record_that_was_gone(
    settings: Any, transactional_db: None, work: type[Work]
) -> None:
    settings.IDEMPOTENCY = {
        "default": {"BACKEND": "tests.unit.http.stores.Vanishing", "TRANSACTION": "single"}
    }
    job = work("done")

    assert run(job).stored
    settings.IDEMPOTENCY = {}
    assert run(job).replayed
