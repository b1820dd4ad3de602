"""An owner whose lease was taken over: none of its writes lands any more."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from django_idempotency.engine import Engine
from django_idempotency.exceptions import LeaseLost
from django_idempotency.keys import new_token
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from tests.app.models import Effect
from tests.integration.database import claims
from tests.integration.database.claims import (
    Boom,
    claim_request,
    effects,
    lapse,
    operation,
    packed,
    state_of,
    won,
    work,
)

pytestmark = pytest.mark.django_db(transaction=True)


def taken_over(two):
    """A lease that another session has taken over, and the other's."""
    late = claims.lapsed(two.mine, claim_request())
    return late, won(two.other(two.theirs.claim, claim_request()))


def test_R66_I7_late_completion_is_refused(two):
    late, owner = taken_over(two)
    with pytest.raises(LeaseLost):
        two.mine.complete(late, packed("late"), retention=claims.RETENTION)
    record = two.mine.get(owner.record_id)
    assert (record.state, record.token, record.result) == (State.IN_PROGRESS, owner.token, None)


def test_R66_I3_late_completion_leaves_the_result_of_the_owner(two):
    late, owner = taken_over(two)
    two.theirs.complete(owner, packed("owner"), retention=claims.RETENTION)
    with pytest.raises(LeaseLost):
        two.mine.complete(late, packed("late"), retention=claims.RETENTION)
    assert two.mine.get(owner.record_id).result == packed("owner")


@pytest.mark.parametrize("completed", [False, True], ids=["claim", "result"])
def test_R67_I7_late_failure_touches_nothing(two, completed):
    late, owner = taken_over(two)
    if completed:
        two.theirs.complete(owner, packed("owner"), retention=claims.RETENTION)
    before = two.theirs.get(owner.record_id)
    two.mine.fail(late, "late")
    after = two.theirs.get(owner.record_id)
    assert (after.state, after.token, after.error, after.result) == (
        before.state,
        owner.token,
        "",
        before.result,
    )


@pytest.mark.parametrize("completed", [False, True], ids=["claim", "result"])
def test_R67_I7_late_release_touches_nothing(two, completed):
    late, owner = taken_over(two)
    if completed:
        two.theirs.complete(owner, packed("owner"), retention=claims.RETENTION)
    before = two.theirs.get(owner.record_id)
    two.mine.release(late)
    after = two.theirs.get(owner.record_id)
    assert (after.state, after.token, after.fingerprint, after.result) == (
        before.state,
        owner.token,
        claims.FINGERPRINT,
        before.result,
    )


def test_R68_I7_late_renewal_is_refused(two):
    late, owner = taken_over(two)
    before = two.theirs.get(owner.record_id).lease_until
    assert two.mine.renew([late], timedelta(hours=9)) == set()
    assert two.theirs.get(owner.record_id).lease_until == before


ENDINGS = {
    "complete": lambda store, lease: store.complete(lease, b"", retention=claims.RETENTION),
    "fail": lambda store, lease: store.fail(lease, "late"),
    "release": lambda store, lease: store.release(lease),
    "renew": lambda store, lease: store.renew([lease], timedelta(hours=9)),
}


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("another", ["epoch", "token"])
def test_R68_proof_is_the_epoch_and_the_token(two, end, another):
    lease = won(two.mine.claim(claim_request()))
    value = lease.fencing_token + 1 if another == "epoch" else new_token()
    IdempotencyRecord.objects.update(**{another: value})
    before = IdempotencyRecord.objects.values().get()
    with suppress(LeaseLost):
        ENDINGS[end](two.mine, lease)
    assert IdempotencyRecord.objects.values().get() == before


@pytest.mark.parametrize("end", ["fail", "release"])
def test_I13_completion_after_the_own_ending_is_refused(two, end):
    lease = won(two.mine.claim(claim_request()))
    getattr(two.mine, end)(lease, *(["error"] if end == "fail" else []))
    with pytest.raises(LeaseLost):
        two.mine.complete(lease, packed("late"), retention=claims.RETENTION)
    assert two.mine.get(lease.record_id).result is None


def test_I3_failure_after_the_own_completion_touches_nothing(two):
    lease = claims.completed(two.mine, claim_request())
    two.mine.fail(lease, "late")
    assert state_of(two.mine) is State.COMPLETED


def test_I3_release_after_the_own_completion_touches_nothing(two):
    lease = claims.completed(two.mine, claim_request())
    two.mine.release(lease)
    assert state_of(two.mine) is State.COMPLETED


def test_renewal_after_the_own_ending_is_refused(two):
    lease = claims.failed(two.mine, claim_request())
    assert two.mine.renew([lease], timedelta(hours=9)) == set()
    assert two.mine.get(lease.record_id).lease_until is None


@pytest.mark.leg("postgres18", "postgres16")
def test_R66_I7_late_work_is_rolled_back(two):
    def run(lease):
        two.other(lapse)
        two.other(Engine(two.theirs).run, operation(), work("theirs"))
        return work("late")(lease)

    with pytest.raises(LeaseLost):
        Engine(two.mine).run(operation(), run)
    assert effects() == ["theirs"]
    assert two.mine.get(claims.record_id()).result == packed("theirs")


@pytest.mark.leg("postgres18", "postgres16")
def test_R67_late_failure_of_work_leaves_the_result_of_the_owner(two):
    def run(lease):
        two.other(lapse)
        two.other(Engine(two.theirs).run, operation(), work("theirs"))
        raise Boom

    with pytest.raises(Boom):
        Engine(two.mine).run(operation(), run)
    record = two.mine.get(claims.record_id())
    assert (record.state, record.result) == (State.COMPLETED, packed("theirs"))


@pytest.mark.leg("sqlite")
def test_R66_I7_work_does_not_begin_under_a_lease_that_was_taken_over(two):
    def take_over():
        lapse()
        won(two.theirs.claim(claim_request()))

    ran = []
    two.mine.before("FENCE", lambda: two.other(take_over))
    with pytest.raises(LeaseLost):
        Engine(two.mine).run(operation(), ran.append)
    assert two.mine.reached
    assert ran == []


@pytest.mark.leg("sqlite")
def test_work_holds_the_write_lock_before_it_reads(two):
    """In the deferred mode a write after a read fails at once if another writer came between."""

    def begin_to_write():
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
            cursor.execute("BEGIN IMMEDIATE")

    def run(lease):
        assert Effect.objects.count() == 0
        with pytest.raises(OperationalError, match="locked"):
            two.other(begin_to_write)
        return work("mine")(lease)

    Engine(two.mine).run(operation(), run)
    assert effects() == ["mine"]
