"""REPEATABLE READ and SERIALIZABLE, where a transaction does not see what was committed since."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_idempotency.engine import Engine
from django_idempotency.engine.renewal import Keeper
from django_idempotency.exceptions import FingerprintMismatch, InProgress, StoreError
from django_idempotency.records import State
from django_idempotency.stores.database.postgresql import PostgreSQL
from tests.app.models import Effect
from tests.integration.database import claims
from tests.integration.database.claims import (
    Boom,
    claim_request,
    effects,
    operation,
    packed,
    record_id,
    state_of,
    won,
    work,
)
from tests.integration.database.sessions import PATIENCE
from tests.integration.database.test_single import GATE, gated
from tests.unit.http.api import replayed

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16"),
]

MODES = ["single", "joined", "separate"]
THREADS = 8


@pytest.fixture
def isolated(isolation, two):
    """Two sessions at the isolation level."""
    return two


def level_of_this_transaction():
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return cursor.fetchone()[0]


def test_the_level_is_what_the_test_says(isolation, isolated):
    with transaction.atomic():
        assert level_of_this_transaction() == isolation


# R54: duplicates that race.


@pytest.mark.parametrize(
    ("mode", "before"),
    [
        *((mode, claims.absent) for mode in MODES),
        ("single", claims.failed),
        ("joined", claims.lapsed),
        ("separate", claims.expired),
    ],
)
def test_R54_duplicates_that_race_run_once(isolation, store, run_in_threads, mode, before):
    engine, together = Engine(store), threading.Barrier(THREADS)
    keys = [f"key {number}" for number in range(5)]
    for key in keys:
        before(store, claim_request(key))

    def run_all(index):
        told = []
        for key in keys:
            together.wait(30)
            try:
                told.append(engine.run(operation(key, transaction=mode), work(key)).result)
            except InProgress:
                told.append(None)
        return told

    answers = run_in_threads(THREADS, run_all)
    assert effects() == keys
    for key, told in zip(keys, zip(*answers, strict=True), strict=True):
        assert set(told) <= {key, None}


@pytest.mark.parametrize(
    ("mode", "atomic_requests"),
    [("single", False), ("joined", False), ("joined", True), ("separate", True)],
    indirect=True,
)
def test_R54_requests_that_race_are_never_500(
    isolation, api, mode, atomic_requests, run_in_threads
):
    api.client.raise_request_exception = False
    api()  # so that alice is there
    together = threading.Barrier(THREADS)

    def send(index):
        statuses = []
        for number in range(5):
            together.wait(30)
            statuses.append(api(key=f"key {number}").status_code)
        return statuses

    answers = run_in_threads(THREADS, send)
    assert {status for statuses in answers for status in statuses} <= {201, 409}
    assert effects() == ["first"] * 6


# One call after the other.


@pytest.mark.parametrize("mode", MODES)
def test_a_key_has_its_life(isolated, mode):
    engine = Engine(isolated.mine)

    def fail(lease):
        work("failed")(lease)
        raise Boom

    with pytest.raises(Boom):
        engine.run(operation(transaction=mode), fail)
    assert state_of(isolated.mine) is State.FAILED
    assert engine.run(operation(transaction=mode), work("mine")).result == "mine"
    assert engine.run(operation(transaction=mode), work("again")).replayed
    with pytest.raises(FingerprintMismatch):
        engine.run(operation(transaction=mode, fingerprint=claims.OTHER_FINGERPRINT), work("other"))
    kept = engine.run(operation("kept", transaction=mode), fail, lambda error: "kept")
    again = isolated.other(Engine(isolated.theirs).run, operation("kept"), work("again"))
    assert (kept.result, again.result) == ("kept", "kept")
    assert effects() == (["failed", "mine", "failed"] if mode == "separate" else ["mine"])


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [("single", "single"), ("single", "joined"), ("joined", "single"), ("separate", "joined")],
)
def test_R49_duplicate_is_told_at_once_while_the_work_runs(isolated, mine, theirs):
    def run(lease):
        with pytest.raises(InProgress):
            isolated.other(
                Engine(isolated.theirs).run, operation(transaction=theirs), work("theirs")
            )
        return work("mine")(lease)

    assert Engine(isolated.mine).run(operation(transaction=mine), run).result == "mine"
    assert effects() == ["mine"]


# `single`: what was committed since its snapshot.


def test_single_begins_again_if_the_record_is_newer_than_its_snapshot(isolated):
    ran = []
    with pytest.MonkeyPatch.context() as patch, connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [GATE])
        with transaction.atomic():
            Engine(isolated.mine).run(operation(transaction="single"), work("mine"))
            patch.setattr(PostgreSQL, "SINGLE_LOCK", gated(PostgreSQL.SINGLE_LOCK))
            duplicate = isolated.other.start(
                Engine(isolated.theirs).run, operation(transaction="single"), ran.append
            )
            isolated.other.settles(duplicate)
            assert not duplicate.done()  # it has its snapshot, and waits at the gate
        cursor.execute("SELECT pg_advisory_unlock(%s)", [GATE])
        outcome = duplicate.result(PATIENCE)
    assert (outcome.result, outcome.replayed, ran) == ("mine", True, [])


def test_single_begins_again_if_a_stalled_owner_completes_after_its_snapshot(isolated):
    stalled = claims.lapsed(isolated.theirs, claim_request())
    isolated.mine.before(
        "RECLAIM",
        lambda: isolated.other(
            isolated.theirs.complete, stalled, packed("owner"), retention=claims.RETENTION
        ),
    )
    outcome = Engine(isolated.mine).run(operation(transaction="single"), work("mine"))
    assert isolated.mine.reached
    assert (outcome.result, outcome.replayed, effects()) == ("owner", True, [])


# Inside the transaction of a caller.


@pytest.mark.parametrize(
    ("before", "end"),
    [
        (claims.absent, "completes"),
        (claims.absent, "is in progress"),
        (claims.failed, "completes"),
        (claims.lapsed, "fails"),
        (claims.expired, "is in progress"),
    ],
)
def test_R54_claim_that_meets_a_newer_record_is_in_progress(isolated, before, end):
    before(isolated.theirs, claim_request())

    def claim_and_end():
        lease = won(isolated.theirs.claim(claim_request()))
        if end == "completes":
            isolated.theirs.complete(lease, packed("theirs"), retention=claims.RETENTION)
        elif end == "fails":
            isolated.theirs.fail(lease, "")

    with transaction.atomic():
        assert Effect.objects.count() == 0  # the snapshot
        isolated.other(claim_and_end)
        with pytest.raises(InProgress):
            Engine(isolated.mine).run(operation(transaction="single"), work("mine"))
        Effect.objects.create(name="of the caller")  # whose transaction is not poisoned
    assert effects() == ["of the caller"]


def test_R54_api_in_the_transaction_of_a_caller(isolation, api, other):
    api()  # so that alice is there
    with transaction.atomic():
        assert Effect.objects.count() == 1
        assert other(api, key="key-2").status_code == 201
        assert api(key="key-2").status_code == 409
    assert replayed(api(key="key-2"))


# Renewal.


class Counting(Keeper):
    """A keeper that only notes what it is given."""

    def __init__(self):
        self.given = []
        super().__init__()

    def add(self, store, lease, **options):
        self.given.append(lease)


@pytest.mark.parametrize(("mode", "kept"), [("joined", 0), ("separate", 1)])
def test_R69_joined_is_not_renewed(isolation, store, mode, kept):
    keeper = Counting()
    Engine(store, keeper=keeper).run(operation(transaction=mode, renew=True), work("mine"))
    assert len(keeper.given) == kept


def test_R69_joined_is_renewed_at_read_committed(store):
    test_R69_joined_is_not_renewed(None, store, "joined", kept=1)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_R69_work_that_raises_its_own_level_and_is_renewed_is_told_once(two, caplog, level):
    def raise_level(lease):
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
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


@pytest.mark.parametrize("end", ["complete", "fail", "release"])
def test_owner_writes_again_if_a_renewal_was_under_way(isolated, end):
    """In autocommit, too, the server's default makes the second of two updates an error."""
    lease = won(isolated.mine.claim(claim_request()))

    def write():
        if end == "complete":
            isolated.theirs.complete(lease, packed("theirs"), retention=claims.RETENTION)
        elif end == "fail":
            isolated.theirs.fail(lease, "")
        else:
            isolated.theirs.release(lease)

    with transaction.atomic():
        isolated.mine.renew([lease], timedelta(seconds=60))
        writing = isolated.other.start(write)
        isolated.other.settles(writing)
    writing.result(PATIENCE)
    ended = {"complete": State.COMPLETED, "fail": State.FAILED, "release": State.RELEASED}
    assert isolated.mine.get(record_id()).state is ended[end]


# The sweep.


def test_I9_sweep_passes_over_a_record_that_is_claimed_again_after_its_snapshot(isolated):
    claims.expired(isolated.theirs, claim_request())
    claims.expired(isolated.theirs, claim_request("another"))
    inner = "(\n     SELECT id FROM idempotency_record"
    assert PostgreSQL.SWEEP.count(inner) == 1
    waiting = f"{inner}, (SELECT pg_advisory_xact_lock({GATE}) OFFSET 0) AS gate"
    waiting = PostgreSQL.SWEEP.replace(inner, waiting).replace(
        "FOR UPDATE", "FOR UPDATE OF idempotency_record"
    )
    with pytest.MonkeyPatch.context() as patch, connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [GATE])
        patch.setattr(PostgreSQL, "SWEEP", waiting)
        sweeping = isolated.other.start(isolated.theirs.sweep)
        isolated.other.settles(sweeping)
        assert not sweeping.done()  # it has its snapshot, and waits at the gate
        lease = won(isolated.mine.claim(claim_request()))
        cursor.execute("SELECT pg_advisory_unlock(%s)", [GATE])
        swept = sweeping.result(PATIENCE)
    assert isolated.mine.get(lease.record_id).token == lease.token
    assert swept + isolated.mine.sweep() == 1
