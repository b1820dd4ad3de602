"""The claim: who wins it in each state of the record, and what it leaves behind."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_idempotency.engine import Decision, decide
from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from tests.integration.database import claims
from tests.integration.database.claims import (
    FINGERPRINT,
    OTHER_FINGERPRINT,
    claim_request,
    expire,
    lapse,
    lost,
    record_id,
    won,
)

pytestmark = pytest.mark.django_db(transaction=True)

OURS, THEIRS = (FINGERPRINT,), (OTHER_FINGERPRINT,)
SECOND = timedelta(seconds=1)


@pytest.fixture(params=["single", "joined", "separate"])
def claim(request, store):
    """Claim in one of the three modes; `single` inside its transaction."""

    def claim(**fields):
        asked = claim_request(transaction=request.param, **fields)
        with store.atomic() if request.param == "single" else nullcontext():
            return asked, store.claim(asked)

    return claim


@pytest.mark.parametrize(
    ("before", "fingerprints"),
    [
        pytest.param(before, fingerprints, id=f"{before.__name__}-{name}")
        for name, fingerprints, befores in (
            (
                "same",
                OURS,
                (
                    claims.absent,
                    claims.failed,
                    claims.released,
                    claims.lapsed,
                    claims.expired,
                    claims.expired_failed,
                    claims.expired_lapsed,
                ),
            ),
            (
                "other",
                THEIRS,
                (
                    claims.absent,
                    claims.released,
                    claims.expired,
                    claims.expired_failed,
                    claims.expired_lapsed,
                ),
            ),
        )
        for before in befores
    ],
)
def test_I2_R70_R74_claim_is_won(store, claim, before, fingerprints):
    earlier = before(store, claim_request())
    _, claimed = claim(fingerprints=fingerprints)
    lease = won(claimed)
    assert lease.record_id == record_id()
    if earlier is not None:
        assert lease.fencing_token > earlier.fencing_token
        assert lease.token != earlier.token


@pytest.mark.parametrize(
    ("before", "fingerprints", "decision"),
    [
        pytest.param(claims.live, OURS, Decision.IN_PROGRESS, id="live-same"),
        pytest.param(claims.live, THEIRS, Decision.MISMATCH, id="live-other"),
        pytest.param(claims.lapsed, THEIRS, Decision.MISMATCH, id="lapsed-other"),
        pytest.param(claims.failed, THEIRS, Decision.MISMATCH, id="failed-other"),
        pytest.param(claims.completed, OURS, Decision.REPLAY, id="completed-same"),
        pytest.param(claims.completed, THEIRS, Decision.MISMATCH, id="completed-other"),
        pytest.param(claims.live_beyond_expiry, OURS, Decision.IN_PROGRESS, id="beyond-same"),
        pytest.param(claims.live_beyond_expiry, THEIRS, Decision.MISMATCH, id="beyond-other"),
    ],
)
def test_I1_I3_I11_claim_is_lost_and_changes_nothing(store, claim, before, fingerprints, decision):
    before(store, claim_request())
    row = IdempotencyRecord.objects.values().get(pk=record_id())
    asked, claimed = claim(fingerprints=fingerprints)
    assert decide(lost(claimed), asked) is decision
    assert IdempotencyRecord.objects.values().get(pk=record_id()) == row


def test_R71_lapsed_lease_is_stale_where_it_is_not_to_be_taken_over(store):
    before = claims.lapsed(store, claim_request())
    asked = claim_request(on_stale="refuse")
    record = lost(store.claim(asked))
    assert decide(record, asked) is Decision.STALE
    assert record.token == before.token


@pytest.mark.parametrize("before", [claims.failed, claims.released], ids=["failed", "released"])
def test_R71_ended_lease_is_no_stale_one(store, before):
    before(store, claim_request(on_stale="refuse"))
    won(store.claim(claim_request(on_stale="refuse")))


def test_the_record_that_comes_back_is_what_is_stored(store):
    claims.completed(store, claim_request(operation="pay"))
    record = lost(store.claim(claim_request()))
    row = IdempotencyRecord.objects.get(pk=record_id())
    fields = [
        *("scope", "key", "operation", "state", "epoch", "token", "lease_until"),
        *("created_at", "updated_at", "expires_at", "attempts", "error"),
    ]
    assert [getattr(record, name) for name in fields] == [getattr(row, name) for name in fields]
    assert (record.record_id, record.operation) == (row.id, "pay")
    assert (record.fingerprint, record.result) == (bytes(row.fingerprint), bytes(row.result))
    assert record.created_at.tzinfo is not None


def test_a_won_claim_is_what_is_stored(store):
    lease = won(store.claim(claim_request(operation="pay", lease=timedelta(seconds=300))))
    record = store.get(lease.record_id)
    assert (record.state, record.operation, record.attempts) == (State.IN_PROGRESS, "pay", 1)
    assert (record.epoch, record.token) == (lease.fencing_token, lease.token)
    assert record.lease_until == lease.lease_until == record.updated_at + timedelta(seconds=300)
    assert (record.created_at, record.fingerprint) == (record.updated_at, FINGERPRINT)
    assert (record.result, record.error) == (None, "")


def test_I2_epoch_begins_with_the_clock_in_microseconds(store):
    lease = won(store.claim(claim_request()))
    started = store.get(lease.record_id).created_at
    assert abs(lease.fencing_token - started.timestamp() * 1_000_000) < 2_000  # SQLite: in ms


def test_I2_epoch_grows_where_the_clock_does_not(store):
    """Two claims in one tick of the clock, and a clock that was set back."""
    claims.failed(store, claim_request())
    ahead = 2 * won(store.claim(claim_request())).fencing_token
    IdempotencyRecord.objects.update(epoch=ahead)
    lapse()
    assert won(store.claim(claim_request())).fencing_token == ahead + 1


@pytest.mark.leg("postgres18", "postgres16")
def test_I2_epoch_of_single_grows_where_the_clock_does_not(store):
    ahead = 2 * claims.failed(store, claim_request()).fencing_token
    IdempotencyRecord.objects.update(epoch=ahead)
    with store.atomic():
        lease = won(store.claim(claim_request(transaction="single")))
        store.complete(lease, b"", retention=claims.RETENTION)
    assert store.get(record_id()).epoch == ahead + 1


def test_I2_epoch_grows_over_a_sweep(store):
    before = claims.expired(store, claim_request())
    assert store.sweep() == 1
    assert won(store.claim(claim_request())).fencing_token > before.fencing_token


@pytest.mark.parametrize("mode", ["joined", "separate"])
@pytest.mark.parametrize("before", [claims.absent, claims.failed], ids=["new", "again"])
def test_claim_sent_again_under_its_token_gives_the_same_lease(store, mode, before):
    before(store, claim_request())
    asked = claim_request(transaction=mode)
    first, second = won(store.claim(asked)), won(store.claim(asked))
    assert (second.proof, second.lease_until) == (first.proof, first.lease_until)
    assert store.get(first.record_id).attempts == (2 if before is claims.failed else 1)


def test_claim_sent_again_after_its_completion_gives_the_record(store):
    asked = claim_request()
    claims.completed(store, asked)
    record = lost(store.claim(asked))
    assert (record.state, record.token) == (State.COMPLETED, asked.token)


@pytest.mark.parametrize("before", [claims.failed, claims.lapsed], ids=["failed", "lapsed"])
def test_I6_claim_keeps_the_fingerprint_of_the_record(store, before):
    before(store, claim_request())
    rotated = claim_request(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT))
    lease = won(store.claim(rotated))
    assert store.get(lease.record_id).fingerprint == FINGERPRINT


@pytest.mark.parametrize("before", [claims.released, claims.expired], ids=["released", "expired"])
def test_I6_claim_stores_the_newest_fingerprint_where_none_stands(store, before):
    before(store, claim_request())
    rotated = claim_request(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT))
    lease = won(store.claim(rotated))
    assert store.get(lease.record_id).fingerprint == OTHER_FINGERPRINT


@pytest.mark.parametrize("before", [claims.live, claims.completed], ids=["live", "completed"])
def test_R47_any_of_several_fingerprints_is_the_same_thing(store, before):
    before(store, claim_request())
    rotated = claim_request(fingerprints=(b"3" * 32, OTHER_FINGERPRINT, FINGERPRINT))
    assert decide(lost(store.claim(rotated)), rotated) is not Decision.MISMATCH


def test_claims_are_counted_until_the_record_expires(store):
    claims.failed(store, claim_request())
    claims.lapsed(store, claim_request())
    lease = won(store.claim(claim_request()))
    assert store.get(lease.record_id).attempts == 3
    store.fail(lease, "")
    expire()
    lease = won(store.claim(claim_request()))
    record = store.get(lease.record_id)
    assert (record.attempts, record.created_at) == (1, record.updated_at)


@pytest.mark.parametrize("before", [claims.expired, claims.failed], ids=["result", "error"])
def test_claim_removes_what_an_earlier_attempt_left(store, before):
    before(store, claim_request())
    lease = won(store.claim(claim_request(operation="another")))
    record = store.get(lease.record_id)
    assert (record.result, record.error, record.operation) == (None, "", "another")


def test_claim_of_a_lapsed_lease_says_so(store):
    claims.lapsed(store, claim_request())
    assert won(store.claim(claim_request())).takeover


@pytest.mark.parametrize(
    "before", [claims.absent, claims.failed, claims.released, claims.expired, claims.expired_lapsed]
)
def test_claim_of_anything_else_is_no_takeover(store, before):
    before(store, claim_request())
    assert not won(store.claim(claim_request())).takeover


@pytest.mark.parametrize(
    ("retention", "max_duration", "lease", "lifetime"),
    [(86_400, 3_600, 60, 86_400), (60, 3_600, 90, 3_690)],
    ids=["retention", "work"],
)
@pytest.mark.parametrize("before", [claims.absent, claims.failed], ids=["new", "again"])
def test_expires_at_covers_the_retention_and_the_longest_work(
    store, before, retention, max_duration, lease, lifetime
):
    before(store, claim_request())
    claimed = won(
        store.claim(
            claim_request(
                retention=timedelta(seconds=retention),
                max_duration=timedelta(seconds=max_duration),
                lease=timedelta(seconds=lease),
            )
        )
    )
    record = store.get(claimed.record_id)
    assert record.expires_at == record.updated_at + timedelta(seconds=lifetime)


@pytest.mark.parametrize("before", [claims.absent, claims.failed], ids=["new", "again"])
def test_R71_record_that_is_not_to_be_taken_over_does_not_expire(store, before):
    before(store, claim_request())
    lease = won(store.claim(claim_request(on_stale="refuse")))
    assert store.get(lease.record_id).expires_at is None
    lapse()
    assert store.sweep() == 0


def test_R72_the_clock_is_the_one_of_the_database(store):
    lease = won(store.claim(claim_request(lease=timedelta(seconds=60))))
    record = store.get(lease.record_id)
    assert record.updated_at <= record.now <= record.updated_at + 10 * SECOND
    assert lease.claimed_at == record.updated_at


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize(
    ("mode", "before", "end"),
    [
        ("separate", claims.absent, "complete"),
        ("separate", claims.failed, "fail"),
        ("separate", claims.absent, "release"),
        ("single", claims.absent, "complete"),
        ("single", claims.failed, "complete"),
    ],
)
def test_R72_the_time_is_that_of_each_statement_and_not_of_its_transaction(
    store, mode, before, end
):
    """Or the lease of a claim in a long transaction would begin too early."""
    before(store, claim_request())
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        [began] = cursor.fetchone()
        lease = won(store.claim(claim_request(transaction=mode)))
        if end == "complete":
            store.complete(lease, b"", retention=claims.RETENTION)
        elif end == "fail":
            store.fail(lease, "error")
        else:
            store.release(lease)
        record = store.get(lease.record_id)
    assert began < lease.claimed_at < record.updated_at


@pytest.mark.leg("postgres18", "postgres16")
def test_R72_the_time_zone_of_the_session_does_not_matter(store):
    before = won(store.claim(claim_request("before"))).claimed_at
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Pacific/Auckland'")
    try:
        with store.atomic():
            lease = won(store.claim(claim_request(transaction="single")))
            store.complete(lease, b"", retention=claims.RETENTION)
        record = store.get(record_id())
        assert before <= record.created_at <= record.updated_at <= before + 10 * SECOND
        assert record.expires_at == record.updated_at + claims.RETENTION
    finally:
        connection.close()


def test_R11_keys_are_byte_exact(store):
    for key in ("key", "KEY", "key ", "kéy", "ke\u0301y"):
        won(store.claim(claim_request(key)))
    assert IdempotencyRecord.objects.count() == 5


def test_get_of_an_unknown_record(store):
    assert store.get(record_id("nothing")) is None


def test_without_its_table_the_error_says_what_to_do(store):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE idempotency_record RENAME TO elsewhere")
    try:
        with pytest.raises(StoreError, match=r"run manage\.py migrate"):
            store.get(claim_request().record_id)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO idempotency_record")
