"""Calls that race: each key has its work done once, in any mode; the contract races claims."""

from __future__ import annotations

import pytest

from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress
from django_idempotency.records import State
from tests.integration.database.claims import effects, operation, state_of, work

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "sqlite", "mariadb"),
]

THREADS = 8
MODES = ("single", "joined", "separate")


@pytest.mark.parametrize("modes", [*((mode,) for mode in MODES), MODES], ids=" ".join)
def test_I5_R26_work_of_each_key_is_done_once(store, run_in_threads, modes):
    keys = [f"key {number}" for number in range(12)]
    engine = Engine(store)

    def run_all(index):
        answers = []
        for key in keys:
            try:
                asked = operation(key, transaction=modes[index % len(modes)])
                answers.append(engine.run(asked, work(key)))
            except InProgress:
                answers.append(None)
        return answers

    answers = run_in_threads(THREADS, run_all, seconds=60)
    assert sorted(effects()) == sorted(keys)
    assert all(state_of(store, key) is State.COMPLETED for key in keys)
    for key, outcomes in zip(keys, zip(*answers, strict=True), strict=True):
        told = [outcome for outcome in outcomes if outcome is not None]
        assert {outcome.result for outcome in told} == {key}
        assert [outcome.replayed for outcome in told].count(False) == 1
