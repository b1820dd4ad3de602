"""What the store contract does not see of rows: `single`, times, the epoch, the sweep's order."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_idempotency.claims import Decision, decide
from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import statements
from tests.integration.database import claims
from tests.integration.database.claims import claim_request, lost, packed, record_id, won

pytestmark = pytest.mark.django_db(transaction=True)

OURS, THEIRS = (claims.FINGERPRINT,), (claims.OTHER_FINGERPRINT,)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
POSTGRESQL = pytest.mark.leg("postgres18", "postgres16")


def end(store, lease, ending):
    if ending == "complete":
        store.complete(lease, packed("result"), retention=HOUR)
    elif ending == "fail":
        store.fail(lease, "error")
    else:
        store.release(lease)


# `single`. The contract claims in the other modes.


@pytest.mark.parametrize(
    ("before", "fingerprints", "decision"),
    [
        (claims.live, THEIRS, Decision.MISMATCH),
        (claims.lapsed, THEIRS, Decision.MISMATCH),
        (claims.failed, THEIRS, Decision.MISMATCH),
        (claims.completed, THEIRS, Decision.MISMATCH),
        (claims.live_beyond_expiry, OURS, Decision.IN_PROGRESS),
    ],
)
def test_I1_I3_I11_claim_of_single_is_lost_and_changes_nothing(
    store, before, fingerprints, decision
):
    before(store, claim_request())
    row = IdempotencyRecord.objects.values().get(pk=record_id())
    asked = claim_request(transaction="single", fingerprints=fingerprints)
    with store.atomic():
        claimed = store.claim(asked)
    assert decide(lost(claimed), asked) is decision
    assert IdempotencyRecord.objects.values().get(pk=record_id()) == row


# Columns.


@pytest.mark.parametrize("mode", ["joined", pytest.param("single", marks=POSTGRESQL)])
def test_I2_epoch_grows_where_the_clock_does_not(store, mode):
    """Two claims in one tick of the clock, and a clock that was set back."""
    ahead = 2 * claims.failed(store, claim_request()).fencing_token
    IdempotencyRecord.objects.update(epoch=ahead)
    with transaction.atomic():
        lease = won(store.claim(claim_request(transaction=mode)))
        store.complete(lease, b"", retention=HOUR)
    assert lease.fencing_token == store.get(record_id()).epoch == ahead + 1


# Times.


@POSTGRESQL
@pytest.mark.parametrize(
    ("mode", "before", "ending"),
    [
        ("joined", claims.absent, "complete"),
        ("joined", claims.failed, "fail"),
        ("single", claims.absent, "complete"),
        ("single", claims.failed, "complete"),
    ],
)
def test_R72_the_time_is_that_of_each_statement_and_not_of_its_transaction(
    store, mode, before, ending
):
    """Or the lease of a claim in a long transaction would begin too early."""
    before(store, claim_request())
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        [began] = cursor.fetchone()
        cursor.execute("SET LOCAL TIME ZONE 'Pacific/Auckland'")
        lease = won(store.claim(claim_request(transaction=mode)))
        end(store, lease, ending)
        record = store.get(lease.record_id)
    assert began < lease.claimed_at < record.updated_at < began + 10 * SECOND


@POSTGRESQL
@pytest.mark.parametrize(
    ("left", "alone"), [(0.99, False), (1.01, True), (1.09, True), (1.11, False)]
)
def test_R73_expires_at_is_left_alone_up_to_a_tenth_beyond_the_retention(store, left, alone):
    lease = claims.live(store, claim_request(retention=HOUR))
    claimed = store.get(lease.record_id)
    IdempotencyRecord.objects.update(expires_at=claimed.updated_at + HOUR * left)
    expires_at = store.complete(lease, packed("result"), retention=HOUR)
    record = store.get(lease.record_id)
    assert expires_at == record.expires_at
    assert expires_at == (claimed if alone else record).updated_at + HOUR * (left if alone else 1)


# Many rows.


def test_records_that_expire_at_the_same_time_are_on_a_page_each(store):
    """Their ids say which comes after which."""
    ids = [claims.completed(store, claim_request(str(n))).record_id for n in range(4)]
    later = IdempotencyRecord.objects.latest("expires_at").expires_at + HOUR
    assert IdempotencyRecord.objects.update(expires_at=later) == 4
    found, cursor = [], None
    while not found or cursor is not None:
        page = store.browse(limit=1, cursor=cursor)
        found += [record.record_id for record in page.records]
        cursor = page.cursor
        assert len(found) <= 4, "it goes round in circles"
    assert found == sorted(ids, reverse=True)


def test_damaged_record_is_left_out_of_a_page_and_ends_none(store, caplog):
    for name in ("a", "b", "c"):
        claims.completed(store, claim_request(name))
    first, damaged, last = [record.record_id for record in store.browse().records]
    IdempotencyRecord.objects.filter(pk=damaged).update(state="NO STATE")
    pages, cursor, named = [], None, []
    while not pages or cursor is not None:
        page = store.browse(cursor=cursor, limit=1)
        pages.append([record.record_id for record in page.records])
        named += page.damaged
        cursor = page.cursor
        assert len(pages) <= 3, "it goes round in circles"
    assert (pages, named) == ([[first], [last]], [str(damaged)[:12]])
    assert "cannot be shown" in caplog.text
    assert "NO STATE" not in caplog.text


def test_renewal_of_many_leases_is_one_round_trip(store, django_assert_num_queries):
    leases = [claims.lapsed(store, claim_request(f"key {number}")) for number in range(20)]
    # An UPDATE says nothing of its rows on MariaDB: there a second statement does.
    # Inside a transaction, since outside of one it connects anew.
    expected = 2 if connection.vendor == "mysql" else 1
    with transaction.atomic(), django_assert_num_queries(expected):
        assert store.renew(leases, HOUR) == set(leases)


def test_a_batch_of_the_sweep_is_what_expired_first(store):
    for number in range(5):
        claims.expired(store, claim_request(str(number)))
        older = claims.LONG_AGO - timedelta(days=number)
        IdempotencyRecord.objects.filter(key=str(number)).update(expires_at=older)
    assert [store.sweep(limit=2), store.sweep(limit=2)] == [2, 2]
    assert list(IdempotencyRecord.objects.values_list("key", flat=True)) == ["0"]


def test_I9_R75_sweep_within_a_transaction_takes_what_has_expired(store):
    """On PostgreSQL it is no walk."""
    for key, before in {
        "live": claims.live,
        "live beyond its expiry": claims.live_beyond_expiry,
        "completed": claims.completed,
        "expired": claims.expired,
        "lapsed": claims.expired_lapsed,
    }.items():
        before(store, claim_request(key))
    with transaction.atomic():
        assert store.sweep() == 2
    left = IdempotencyRecord.objects.order_by("key").values_list("key", flat=True)
    assert list(left) == ["completed", "live", "live beyond its expiry"]


RENAMED = {
    "table": ("ALTER TABLE {} RENAME TO {}", "idempotency_record", "is not there"),
    "column": ("ALTER TABLE idempotency_record RENAME COLUMN {} TO {}", "error", "is an old one"),
}


@pytest.mark.parametrize(("rename", "name", "told"), RENAMED.values(), ids=RENAMED.keys())
def test_R61_without_its_table_or_a_column_the_error_says_what_to_do(store, rename, name, told):
    with connection.cursor() as cursor:
        cursor.execute(rename.format(name, "elsewhere"))
    try:
        with pytest.raises(StoreError, match=rf"{told}: run manage\.py migrate\.") as refused:
            store.get(claim_request().record_id)
        assert refused.value.retry_after == 60
    finally:
        with connection.cursor() as cursor:
            cursor.execute(rename.format("elsewhere", name))


def test_texts_of_statements_are_kept_for_some_tables_only(store, monkeypatch):
    monkeypatch.setattr(statements, "_TEXTS", 2)
    kept = []
    for number in range(4):
        assert store._texts["LOOK", f"table_{number}"]
        kept.append(len(store._texts))
    assert kept == [1, 2, 1, 2]
