"""REPEATABLE READ and SERIALIZABLE, where a transaction does not see what was committed since."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_idempotency.engine import Engine
from django_idempotency.engine.renewal import LeaseRenewer
from django_idempotency.exceptions import InProgress, StoreError
from django_idempotency.records import State
from tests.app.models import Effect
from tests.integration.database import claims, test_single
from tests.integration.database.claims import claim_request, effects, operation, state_of, won, work
from tests.integration.database.sessions import PATIENCE, execute

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18", "postgres16")]

THREADS = 8


@pytest.fixture
def isolated(isolation, two):
    """Two sessions at the isolation level."""
    return two


# R54: duplicates that race.


@pytest.mark.parametrize(
    ("mode", "before"),
    [("single", claims.absent), ("joined", claims.lapsed), ("separate", claims.expired)],
)
def test_R54_duplicates_that_race_run_once(isolation, store, run_in_threads, mode, before):
    engine, together = Engine(store), threading.Barrier(THREADS)
    keys = [f"key {number}" for number in range(5)]
    for key in keys:
        before(store, claim_request(key))

    def run_all(index):
        told = []
        for key in keys:
            together.wait(60)
            try:
                told.append(engine.run(operation(key, transaction=mode), work(key)).result)
            except InProgress:
                told.append(None)
        return told

    answers = run_in_threads(THREADS, run_all)
    assert effects() == keys
    for key, told in zip(keys, zip(*answers, strict=True), strict=True):
        assert set(told) <= {key, None}


# `single`: what was committed since its snapshot.


def test_single_begins_again_if_the_record_is_newer_than_its_snapshot(isolated):
    test_single.test_I5_record_that_commits_between_the_snapshot_and_the_lock_is_replayed(isolated)


# Inside the transaction of a caller.


@pytest.mark.parametrize(
    ("before", "end"),
    [(claims.absent, "completes"), (claims.lapsed, "fails"), (claims.expired, "is in progress")],
)
def test_R54_claim_that_meets_a_newer_record_is_in_progress(isolated, before, end):
    before(isolated.theirs, claim_request())

    def claim_and_end():
        lease = won(isolated.theirs.claim(claim_request()))
        if end == "completes":
            isolated.theirs.complete(lease, claims.packed("theirs"), retention=claims.RETENTION)
        elif end == "fails":
            isolated.theirs.fail(lease, "")

    with transaction.atomic():
        assert Effect.objects.count() == 0  # the snapshot
        isolated.other(claim_and_end)
        with pytest.raises(InProgress):
            Engine(isolated.mine).run(operation(transaction="single"), work("mine"))
        Effect.objects.create(name="of the caller")  # whose transaction is not poisoned
    assert effects() == ["of the caller"]


# Renewal.


class Counting(LeaseRenewer):
    """A keeper that only notes what it is given."""

    def __init__(self):
        self.given = []
        super().__init__()

    def add(self, store, lease, **options):
        self.given.append(lease)


@pytest.mark.parametrize(("mode", "kept"), [("joined", 0), ("separate", 1)])
def test_R69_joined_is_not_renewed(isolation, store, mode, kept):
    keeper = Counting()
    Engine(store, renewer=keeper).run(operation(transaction=mode, renew=True), work("mine"))
    assert len(keeper.given) == kept


def test_R69_work_that_raises_its_own_level_and_is_renewed_is_told_once(two, caplog):
    def raise_level(lease):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        work("mine")(lease)
        assert two.other(two.theirs.renew, [lease], timedelta(hours=1)) == {lease}

    for _ in range(2):
        with pytest.raises(StoreError):
            Engine(two.mine).run(operation(transaction="joined"), raise_level)
    assert state_of(two.mine) is State.RELEASED
    told = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert len(told) == 1
    assert 'transaction="single"' in told[0]
    Engine(two.mine).run(operation(transaction="single"), work("mine"))
    assert effects() == ["mine"]


def test_owner_writes_again_if_a_renewal_was_under_way(isolated):
    """
    In autocommit, too, the server's default makes the second of two updates an error.

    It is sent again in the same session.
    """
    lease = won(isolated.mine.claim(claim_request()))
    with transaction.atomic():
        isolated.mine.renew([lease], timedelta(seconds=60))
        writing = isolated.other.start(
            isolated.theirs.complete, lease, claims.packed("theirs"), retention=claims.RETENTION
        )
        isolated.other.settles(writing)
    writing.result(PATIENCE)
    assert state_of(isolated.mine) is State.COMPLETED
    assert isolated.other(execute, "SELECT pg_backend_pid()") == isolated.other.pid


# The sweep.
