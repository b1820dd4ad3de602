"""A process dies in, between and after the steps of an attempt, and a retry goes on (P1 to P8)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.utils import timezone

from django_idempotency import InProgress, Uncertain, journal, keys
from django_idempotency.claims import Resolution
from django_idempotency.codecs import JSONCodec, pack
from django_idempotency.conf import store_for
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import Record, State
from tests.acceptance.processes.checkout import (
    CALLS,
    CASES,
    DIED,
    Case,
    Checkout,
    calls_of,
    effects,
)
from tests.services.forks import Forks


@pytest.fixture(autouse=True)
def default_store(settings: Any, transactional_db: None) -> None:
    settings.IDEMPOTENCY = {"default": {}}


def lapse() -> None:
    long_ago = timezone.now() - timedelta(seconds=1)
    assert IdempotencyRecord.objects.update(lease_until=long_ago) == 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_P1_to_P8_what_is_noted_is_done_once_and_a_call_is_uncertain_in_P2_P5_and_P6(
    forks: Forks, case: Case
) -> None:
    dies_and_goes_on(forks, case, lapse)


def dies_and_goes_on(forks: Forks, case: Case, lapse: Callable[[], None]) -> None:
    """Let an attempt die; retry it at once, after its lease, and when an operator has decided."""
    checkout, joins = Checkout(case.pieces, case.uncertain, case.key), store_for().supports_join
    uncertain = [case.piece] if case.is_uncertain else []

    assert run_in(forks, case) == DIED
    assert effects() == case.effects(joins)
    assert in_journal(case) == (case.noted(joins), uncertain)
    if case.point != "after_complete":
        with pytest.raises(InProgress) as told:
            checkout.run()
        assert not told.value.stale
        lapse()
    if uncertain and case.uncertain == "refuse":
        assert_refused(case, checkout)
        assert resume(case.key, case.piece, "told" if case.piece in effects() else None)

    assert checkout.run() == case.results
    left = effects()
    assert [left.count(piece) for piece in case.pieces] == case.times(joins)
    assert left.count("asked") == len(uncertain) * (case.uncertain != "refuse")
    for piece in set(case.pieces).intersection(CALLS):
        assert len(set(calls_of(piece))) == 1, "a gateway that knows keys has been called twice"
    record = record_of(case.key)
    assert (record.state, record.steps, record.held) == (State.COMPLETED, None, False)


def assert_refused(case: Case, checkout: Checkout) -> None:
    """See that each retry is told of the call, and does nothing."""
    left = effects()
    for _ in range(2):
        with pytest.raises(Uncertain) as told:
            checkout.run()
        assert (told.value.step, told.value.stale) == (case.piece, True)
        assert calls_of(case.piece) in ([], [told.value.key])
        record = record_of(case.key)
        assert (record.state, record.held, effects()) == (State.FAILED, True, left)


def run_in(forks: Forks, checkout: Checkout) -> int:
    """Run it in a process of its own; return its exit code."""
    return forks.run(
        "from django.conf import settings\n"
        f"settings.IDEMPOTENCY = {django_settings.IDEMPOTENCY}\n"
        "from tests.acceptance.processes.checkout import Case, Checkout\n"
        f"{checkout!r}.run()"
    )


def record_of(key: str) -> Record:
    record = store_for().get(keys.record_id("call", "s", key))
    assert record is not None
    return record


def in_journal(checkout: Checkout) -> tuple[list[str], list[str]]:
    """The names of the results and of the calls that are uncertain, which hold the record."""
    record = record_of(checkout.key)
    noted = journal.read(record.steps)
    assert record.held == bool(noted.uncertain)
    return [*noted.results], [*noted.uncertain]


def resume(key: str, step: str, result: str | None, *, seen: Record | None = None) -> bool:
    """Decide as an operator: the call was made, with this result, or it was not made."""
    record = seen or record_of(key)
    envelope = None if result is None else pack(JSONCodec(), result, max_bytes=100)
    told = {"step": step, "result": envelope, "not_done": envelope is None}
    resolution = Resolution("resume", record.epoch, record.state, **told)
    return store_for().resolve(record.record_id, resolution)
