"""`single`: claim, work and completion in one transaction, on PostgreSQL under one lock."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from django_idempotency.claims import Resolution
from django_idempotency.engine import Engine
from django_idempotency.exceptions import (
    FingerprintMismatch,
    IdempotencyError,
    InProgress,
    StoreError,
)
from django_idempotency.records import State
from django_idempotency.stores.database.postgresql import PostgreSQL
from tests.app.models import Unique
from tests.integration.database import claims
from tests.integration.database.claims import (
    claim_request,
    effects,
    operation,
    packed,
    won,
    work,
)
from tests.integration.database.sessions import PATIENCE, execute, in_another_database

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18", "postgres16")]

EVERYWHERE = pytest.mark.leg("postgres18", "sqlite", "mariadb")
#: The key of an advisory lock that no record has.
GATE = 4_242


def single(**changes):
    return operation(transaction="single", **changes)


def test_I5_stalled_owner_completes_while_single_runs(two):
    stalled = claims.lapsed(two.theirs, claim_request())

    def run(lease):
        two.other(two.theirs.complete, stalled, packed("owner"), retention=claims.RETENTION)
        return work("mine")(lease)

    outcome = Engine(two.mine).run(single(), run)
    assert (outcome.result, outcome.replayed) == ("owner", True)
    assert effects() == []
    assert two.mine.get(outcome.record_id).result == packed("owner")


@pytest.mark.parametrize("before", [claims.lapsed, claims.expired_lapsed])
def test_I1_I7_stalled_owner_renews_while_single_runs(two, before):
    stalled = before(two.theirs, claim_request())

    def run(lease):
        two.other(two.theirs.renew, [stalled], timedelta(seconds=60))
        return work("mine")(lease)

    with pytest.raises(IdempotencyError):
        Engine(two.mine).run(single(), run)
    assert effects() == []
    record = two.mine.get(stalled.record_id)
    assert (record.live, record.epoch) == (True, stalled.fencing_token)


def test_I8_owner_that_was_stopped_before_its_commit_is_not_waited_for_without_end(
    two, monkeypatch
):
    """`single` then gives its own locks back: nothing of it stays, and a retry finds out."""
    bounded = PostgreSQL.SINGLE_UPDATE.replace("'5s'", "'100ms'")
    assert bounded != PostgreSQL.SINGLE_UPDATE
    monkeypatch.setattr(PostgreSQL, "SINGLE_UPDATE", bounded)
    stopped = claims.lapsed(two.theirs, claim_request(transaction="joined"))
    committing = transaction.atomic()
    two.other(committing.__enter__)
    two.other(two.theirs.complete, stopped, packed("theirs"), retention=claims.RETENTION)

    with pytest.raises(StoreError):
        Engine(two.mine).run(single(), work("mine"))

    two.other(committing.__exit__, None, None, None)
    assert effects() == []
    outcome = Engine(two.mine).run(single(), work("mine"))
    assert (outcome.result, outcome.replayed) == ("theirs", True)


def test_bound_of_the_wait_ends_with_the_completion(two):
    claims.lapsed(two.theirs, claim_request())
    with transaction.atomic():
        assert not Engine(two.mine).run(single(), work("mine")).replayed

        with transaction.get_connection().cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("0",)


def test_R76_swept_between_look_and_completion(two):
    claims.expired(two.theirs, claim_request())

    def run(lease):
        assert two.other(two.theirs.sweep) == 1
        return work("mine")(lease)

    outcome = Engine(two.mine).run(single(), run)
    assert outcome.replayed is False
    assert two.mine.get(outcome.record_id).result == packed("mine")
    assert effects() == ["mine"]


def test_R26_two_replays_at_once_are_both_answered_and_keep_nobody_from_the_key(two):
    claims.completed(two.theirs, claim_request())
    with transaction.atomic():
        assert Engine(two.mine).run(single(), work("mine")).result == "first"
        outcome = two.other(Engine(two.theirs).run, single(), work("theirs"))
        assert (outcome.result, outcome.replayed) == ("first", True)
        two.other(claims.expire)
        assert not two.other(Engine(two.theirs).run, single(), work("theirs")).replayed


@EVERYWHERE
def test_R74_fingerprint_of_an_expired_record_does_not_outlive_it(two):
    """The next request with this key may be another one, and a retry of that is its replay."""
    claims.expired(two.theirs, claim_request())
    other = {"fingerprint": claims.OTHER_FINGERPRINT}
    assert not Engine(two.mine).run(single(**other), work("mine")).replayed
    assert Engine(two.mine).run(single(**other), work("again")).result == "mine"
    with pytest.raises(FingerprintMismatch):
        Engine(two.mine).run(single(), work("first again"))


@EVERYWHERE
def test_R74_record_that_has_expired_takes_the_name_of_what_is_done_now(two):
    claims.expired(two.theirs, claim_request(operation="what was done"))
    outcome = Engine(two.mine).run(replace(single(), name="what is done"), work("mine"))
    assert two.mine.get(outcome.record_id).operation == "what is done"


@pytest.mark.parametrize(
    ("mode", "before"),
    [("single", claims.absent), ("joined", claims.failed), ("separate", claims.expired)],
)
def test_R49_R53_duplicate_is_told_at_once_until_the_commit(two, mode, before):
    before(two.theirs, claim_request())

    def duplicate():
        return two.other(Engine(two.theirs).run, operation(transaction=mode), work("theirs"))

    def run(lease):
        with pytest.raises(InProgress) as told:
            duplicate()
        assert told.value.retry_after == 1
        return work("mine")(lease)

    with transaction.atomic():
        assert Engine(two.mine).run(single(), run).result == "mine"
        with pytest.raises(InProgress):
            duplicate()
    assert (duplicate().result, effects()) == ("mine", ["mine"])


def test_I12_claim_leaves_no_lock_behind(two):
    claims.completed(two.theirs, claim_request("replayed"))
    claims.live(two.theirs, claim_request("in progress"))
    engine = Engine(two.mine)
    with transaction.atomic():
        engine.run(single(key="replayed"), work("mine"))
        with pytest.raises(InProgress):
            engine.run(single(key="in progress"), work("mine"))
        assert locks_of_this_session() == 0
    for mode in ("single", "joined"):
        engine.run(operation(mode, transaction=mode), work("mine"))
        assert locks_of_this_session() == 0


def locks_of_this_session():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        return cursor.fetchone()[0]


def test_I10_R53_keys_of_two_schemas_do_not_meet(two):
    """As in projects with a schema per tenant."""

    def look_in(schema):
        with connection.cursor() as cursor:
            cursor.execute(f"SET search_path = {schema}")

    def run(lease):
        assert two.other(Engine(two.theirs).run, single(), work("theirs")).result == "theirs"
        return work("mine")(lease)

    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        try:
            for table in ("idempotency_record", "app_effect"):
                cursor.execute(f"CREATE TABLE tenant.{table} (LIKE {table} INCLUDING ALL)")
            two.other(look_in, "tenant")
            assert Engine(two.mine).run(single(), run).result == "mine"
            assert (effects(), two.other(effects)) == (["mine"], ["theirs"])
        finally:
            two.other(look_in, "public")
            cursor.execute("DROP SCHEMA tenant CASCADE")


def test_I5_record_that_commits_between_the_snapshot_and_the_lock_is_replayed(two):
    """The statement that takes the lock may have read before the owner committed."""
    ran = []
    with pytest.MonkeyPatch.context() as patch, connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [GATE])
        with transaction.atomic():
            Engine(two.mine).run(single(), work("mine"))
            patch.setattr(PostgreSQL, "SINGLE_LOCK", gated(PostgreSQL.SINGLE_LOCK))
            duplicate = two.other.start(Engine(two.theirs).run, single(), ran.append)
            two.other.settles(duplicate)
            assert not duplicate.done()  # it has its snapshot, and waits at the gate
        cursor.execute("SELECT pg_advisory_unlock(%s)", [GATE])
        outcome = duplicate.result(PATIENCE)
    assert (outcome.result, outcome.replayed) == ("mine", True)
    assert ran == []


def gated(statement):
    """`statement`, which waits at the gate after its snapshot was taken and before its lock."""
    clock = "(SELECT clock_timestamp() AS now OFFSET 0) AS clock"
    assert clock in statement
    waiting = f"(SELECT clock_timestamp() AS now, pg_advisory_xact_lock({GATE}) OFFSET 0) AS clock"
    return statement.replace(clock, waiting)


# While nobody else is there: its savepoint, its record, and calls inside one another.


@EVERYWHERE
@pytest.mark.parametrize(
    "before",
    [claims.released, claims.failed, claims.expired, claims.lapsed, claims.expired_lapsed],
)
def test_I2_runs_and_completes_over_a_record_that_may_be_claimed(two, before):
    earlier = before(two.theirs, claim_request())
    outcome = Engine(two.mine).run(single(), work("mine"))
    record = two.mine.get(outcome.record_id)
    assert (record.state, record.result) == (State.COMPLETED, packed("mine"))
    assert record.epoch == outcome.fencing_token > earlier.fencing_token
    assert two.other(Engine(two.theirs).run, single(), work("theirs")).result == "mine"
    assert effects() == ["mine"]


def failed_without_fingerprint(store, request):
    return claims.failed(store, replace(request, fingerprints=()))


@EVERYWHERE
@pytest.mark.parametrize(
    ("before", "fingerprint"),
    [
        (claims.failed, claims.FINGERPRINT),
        (claims.lapsed, claims.FINGERPRINT),
        (failed_without_fingerprint, claims.OTHER_FINGERPRINT),
        (claims.released, claims.OTHER_FINGERPRINT),
        (claims.expired, claims.OTHER_FINGERPRINT),
        (claims.expired_lapsed, claims.OTHER_FINGERPRINT),
    ],
)
def test_single_leaves_of_a_record_what_any_mode_leaves(store, before, fingerprint):
    left = []
    for mode in ("single", "separate"):
        seen = store.get(before(store, claim_request(mode, operation="first")).record_id)
        time.sleep(0.002)  # the clock of SQLite has milliseconds
        request = claim_request(
            mode, operation="second", transaction=mode, fingerprints=(fingerprint,)
        )
        with store.atomic() if mode == "single" else nullcontext():
            lease = won(store.claim(request))
            store.complete(lease, packed("mine"), retention=claims.RETENTION)
        record = store.get(lease.record_id)
        assert (record.token, record.epoch) == (request.token, lease.fencing_token)
        is_new = record.created_at > seen.created_at
        names = ("operation", "fingerprint", "state", "lease_until", "attempts", "result", "error")
        left.append({"is_new": is_new} | {name: getattr(record, name) for name in names})
    assert left[0] == left[1]


@pytest.mark.parametrize("does", ["resolve", "erase"])
def test_operator_leaves_alone_what_an_attempt_of_single_is_at(two, does):
    """Nothing of it is in the row, which says that an earlier one has failed."""
    failed = claims.failed(two.theirs, claim_request())
    given = [failed.record_id]
    if does == "resolve":
        given.append(Resolution("release", epoch=failed.fencing_token, state=State.FAILED))
    with transaction.atomic():
        won(two.mine.claim(claim_request(transaction="single")))
        assert not two.other(getattr(two.theirs, does), *given)
    assert two.other(getattr(two.theirs, does), *given)


@pytest.mark.parametrize("end", ["fail", "release"])
def test_I7_work_of_single_rolls_back_where_a_stalled_owner_has_ended_meanwhile(two, end):
    stalled = claims.lapsed(two.theirs, claim_request())

    def run(lease):
        given = [stalled, "boom"] if end == "fail" else [stalled]
        two.other(getattr(two.theirs, end), *given)
        return work("mine")(lease)

    with pytest.raises(IdempotencyError):
        Engine(two.mine).run(single(), run)
    assert effects() == []
    assert two.mine.get(stalled.record_id).token == stalled.token


@EVERYWHERE
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


@EVERYWHERE
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
            record = two.mine.get(claims.record_id())
            assert (record.state, record.error) == (State.FAILED, "django.db.utils.IntegrityError")
            assert record.fingerprint == claims.FINGERPRINT
        expected = "kept" if kept else "again"
        assert engine.run(single(), work("again")).result == expected
    assert effects() == ([] if kept else ["again"])
    assert two.mine.get(claims.record_id()).attempts == (1 if kept else 2)


@pytest.mark.leg("postgres18", "mariadb")
@pytest.mark.parametrize("before", [claims.absent, claims.failed])
def test_I1_work_that_has_sent_a_rollback_is_not_completed(two, before):
    """Its COMMIT would be that of another transaction: the lock, and the work so far, are gone."""
    before(two.theirs, claim_request())

    def run(lease):
        work("lost")(lease)
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
        return work("after it")(lease)

    with pytest.raises((IdempotencyError, OperationalError)):
        Engine(two.mine).run(single(), run)
    assert effects() == []
    assert Engine(two.mine).run(single(), work("again")).result == "again"


@EVERYWHERE
def test_a_single_claim_outside_of_a_transaction_is_refused(two):
    with pytest.raises(RuntimeError, match="atomic"):
        two.mine.claim(claim_request(transaction="single"))


@pytest.mark.parametrize(
    "before", [claims.absent, claims.failed, claims.lapsed, claims.expired, claims.completed]
)
def test_R51_peek_tells_of_an_attempt_that_no_row_shows(two, before):
    """
    Its lock is the only sign, with keys of either sign.

    It is among those of other tables, of another database, and of two keys.
    """
    requests = [claim_request(f"key {number}") for number in range(8)]
    for request in requests:
        before(two.theirs, request)
    ids = {request.record_id for request in requests}
    working, others = list(ids)[:4], list(ids)[4:]

    def peeked():
        return {x: (record.live, record.epoch) for x, record in two.mine.peek(ids).items()}

    def begin():
        block = transaction.atomic()
        block.__enter__()
        for request in requests:
            if request.record_id in working:
                two.theirs._execute("SINGLE_LOCK", {"id": request.record_id})
        for other in others:
            execute(f"SELECT pg_advisory_xact_lock(hashtextextended('{other}', 0))")
            execute(
                f"SELECT pg_advisory_xact_lock(({key_of(other)} >> 32)::int, "
                f"(({key_of(other)} << 32) >> 32)::int)"
            )
        return block

    def key_of(record_id):
        return f"hashtextextended('{record_id}', 'idempotency_record'::regclass::oid::bigint)"

    numbers = [execute(f"SELECT {key_of(other)}") for other in others]
    at_rest = peeked()
    block = two.other(begin)
    with in_another_database(*(f"SELECT pg_advisory_xact_lock({it})" for it in numbers)):
        at_work = peeked()
    two.other(block.__exit__, None, None, None)

    completed = before is claims.completed  # which answers, and is locked by nobody
    assert at_work == at_rest | ({} if completed else dict.fromkeys(working, (True, 0)))
    assert peeked() == at_rest
