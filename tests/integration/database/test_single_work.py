"""`single` while nobody else is there: its savepoint, its record, and calls inside one another."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress
from django_idempotency.records import State
from tests.app.models import Effect, Unique
from tests.integration.database import claims
from tests.integration.database.claims import (
    claim_request,
    effects,
    operation,
    packed,
    record_id,
    state_of,
    won,
    work,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "sqlite", "mariadb"),
]


def single(**changes):
    return operation(transaction="single", **changes)


@pytest.mark.parametrize(
    "before",
    [claims.released, claims.failed, claims.expired, claims.expired_failed, claims.lapsed],
    ids=lambda before: before.__name__,
)
def test_I2_runs_and_completes_over_a_record_that_may_be_claimed(two, before):
    earlier = before(two.theirs, claim_request())
    outcome = Engine(two.mine).run(single(), work("mine"))
    record = two.mine.get(outcome.record_id)
    assert (record.state, record.result) == (State.COMPLETED, packed("mine"))
    assert record.epoch == outcome.fencing_token > earlier.fencing_token
    assert two.other(Engine(two.theirs).run, single(), work("theirs")).result == "mine"
    assert effects() == ["mine"]


@pytest.mark.parametrize("mode", ["single", "joined", "separate"])
def test_R49_nested_attempt_with_the_same_key_is_in_progress(two, mode):
    engine = Engine(two.mine)
    inner = "single" if mode != "separate" else mode

    def run(lease):
        with pytest.raises(InProgress):
            engine.run(operation(transaction=inner), work("inner"))
        return work("outer")(lease)

    assert engine.run(operation(transaction=mode), run).result == "outer"
    assert effects() == ["outer"]


@pytest.mark.parametrize("kept", [True, False])
def test_R57_R58_outcome_is_recorded_after_the_work_broke_the_transaction(two, kept):
    Unique.objects.create(name="taken")
    engine = Engine(two.mine)

    def run(lease):
        work("mine")(lease)
        Unique.objects.create(name="taken")

    with transaction.atomic():
        if kept:
            assert engine.run(single(), run, lambda error: "kept").result == "kept"
        else:
            with pytest.raises(IntegrityError):
                engine.run(single(), run)
            record = two.mine.get(record_id())
            assert (record.state, record.error) == (State.FAILED, "django.db.utils.IntegrityError")
            assert record.fingerprint == claims.FINGERPRINT
        expected = "kept" if kept else "again"
        assert engine.run(single(), work("again")).result == expected
    assert effects() == ([] if kept else ["again"])
    assert two.mine.get(record_id()).attempts == (1 if kept else 2)


def test_I12_rollback_of_the_transaction_leaves_nothing(two):
    with two.mine.atomic():
        lease = won(two.mine.claim(claim_request(transaction="single")))
        two.mine.complete(lease, packed("mine"), retention=claims.RETENTION)
        transaction.set_rollback(True)
    assert two.mine.get(lease.record_id) is None
    assert Engine(two.mine).run(single(), work("again")).result == "again"


def test_I6_failure_keeps_the_fingerprint_that_stands(two):
    claims.failed(two.theirs, claim_request())
    rotated = claim_request(
        fingerprints=(claims.OTHER_FINGERPRINT, claims.FINGERPRINT), transaction="single"
    )
    with transaction.atomic():
        lease = won(two.mine.claim(rotated))
        two.mine.fail(lease, "")
    assert two.mine.get(lease.record_id).fingerprint == claims.FINGERPRINT


def test_a_single_claim_outside_of_a_transaction_is_refused(two):
    with pytest.raises(RuntimeError, match="atomic"):
        two.mine.claim(claim_request(transaction="single"))


@pytest.mark.parametrize("end", [transaction.commit, transaction.rollback])
def test_caller_that_manages_its_transaction_by_hand(two, end):
    transaction.set_autocommit(False)
    try:
        Effect.objects.create(name="caller")  # on SQLite it takes this to begin
        assert Engine(two.mine).run(single(), work("mine")).result == "mine"
        assert Engine(two.mine).run(single(), work("again")).replayed
        assert two.other(state_of, two.theirs) is None
        end()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    committed = end is transaction.commit
    assert effects() == (["caller", "mine"] if committed else [])
    assert two.other(state_of, two.theirs) is (State.COMPLETED if committed else None)
