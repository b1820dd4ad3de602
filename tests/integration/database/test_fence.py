"""Work whose lease was taken over: it is rolled back, or does not begin (SQLite)."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection

from django_idempotency.engine import Engine
from django_idempotency.exceptions import LeaseLost
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
    won,
    work,
)

pytestmark = pytest.mark.django_db(transaction=True)


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
