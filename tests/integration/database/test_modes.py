"""What holds in each mode and between them: calls that race, records that meet, routers."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from tests.integration.database.claims import effects, operation, state_of, work
from tests.meetings import MEANS, what_it_means

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.leg("postgres18", "sqlite", "mariadb"),
]

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

    answers = run_in_threads(8, run_all, seconds=180)
    assert sorted(effects()) == sorted(keys)
    assert all(state_of(store, key) is State.COMPLETED for key in keys)
    for key, outcomes in zip(keys, zip(*answers, strict=True), strict=True):
        told = [outcome for outcome in outcomes if outcome is not None]
        assert {outcome.result for outcome in told} == {key}
        assert [outcome.replayed for outcome in told].count(False) == 1


@pytest.mark.parametrize("reader", ["run"])  # make proof has all pairs, and readers
@pytest.mark.parametrize(
    ("wrote", "reads"), [("joined", "single"), ("single", "separate"), ("separate", "joined")]
)
def test_I3_I4_record_of_each_mode_means_the_same_to_each_other(store, reader, wrote, reads):
    # A `single` attempt that dies leaves no record in progress.
    states = [x for x in MEANS if wrote != "single" or x not in ("live", "lapsed")]
    meant = what_it_means(Engine(store), reader, wrote=wrote, reads=reads, states=states)
    assert meant == {state: MEANS[state] for state in states}


class ReadsFromTheReplica:
    """What a project with a replica has; here the replica is a database of its own."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.mark.leg("postgres18")
@pytest.mark.parametrize(
    ("using", "other", "mode"),
    [("default", "other", "single"), ("other", "default", "joined")],
)
def test_R87_claim_and_replay_are_on_the_database_that_is_written(settings, using, other, mode):
    settings.DATABASE_ROUTERS = [f"{__name__}.ReadsFromTheReplica"]
    engine = Engine(DatabaseStore(using=using))
    engine.run(operation(transaction=mode), work("mine"))
    assert engine.run(operation(transaction=mode), work("again")).replayed
    assert IdempotencyRecord.objects.using(using).count() == 1
    assert IdempotencyRecord.objects.using(other).count() == 0
    assert effects("default") == ["mine"]
