"""Complete, fail, release and renew: what the owner of a lease writes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_idempotency.exceptions import LeaseLost
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from tests.integration.database import claims
from tests.integration.database.claims import (
    RETENTION,
    claim_request,
    expire,
    lapse,
    packed,
    record_id,
    won,
)

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)


def row():
    return IdempotencyRecord.objects.values().get(pk=record_id())


def test_completion_keeps_the_result_and_tells_when_it_expires(store):
    lease = claims.live(store, claim_request())
    expires_at = store.complete(lease, b"\x00result\xff", retention=RETENTION)
    record = store.get(lease.record_id)
    assert (record.state, record.result) == (State.COMPLETED, b"\x00result\xff")
    assert (record.lease_until, record.error) == (None, "")
    assert (record.epoch, record.token) == (lease.fencing_token, lease.token)
    assert record.fingerprint == claims.FINGERPRINT
    assert record.expires_at == expires_at


def test_completion_sent_again_succeeds_and_changes_nothing(store):
    lease = claims.live(store, claim_request())
    first = store.complete(lease, packed("result"), retention=RETENTION)
    before = row()
    assert store.complete(lease, packed("result"), retention=RETENTION) == first
    assert row() == before


@pytest.mark.leg("postgres18", "postgres16")
def test_completion_of_single_sent_again_succeeds(store):
    with store.atomic():
        lease = won(store.claim(claim_request(transaction="single")))
        first = store.complete(lease, packed("result"), retention=RETENTION)
        assert store.complete(lease, packed("result"), retention=RETENTION) == first


def test_completion_of_a_swept_record_is_refused(store):
    lease = claims.lapsed(store, claim_request())
    expire()
    assert store.sweep() == 1
    with pytest.raises(LeaseLost):
        store.complete(lease, packed("result"), retention=RETENTION)
    assert store.get(lease.record_id) is None


def test_expires_at_counts_from_the_completion(store):
    lease = claims.live(store, claim_request(max_duration=48 * HOUR))
    expires_at = store.complete(lease, packed("result"), retention=HOUR)
    record = store.get(lease.record_id)
    assert expires_at == record.expires_at == record.updated_at + HOUR


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize(
    ("left", "alone"), [(0.95, True), (0.91, True), (0.89, False), (0.0, False), (1.1, False)]
)
def test_expires_at_is_left_alone_while_nine_tenths_of_the_retention_are_left(store, left, alone):
    lease = claims.live(store, claim_request(retention=RETENTION))
    claimed = store.get(lease.record_id)
    IdempotencyRecord.objects.update(expires_at=claimed.updated_at + RETENTION * left)
    expires_at = store.complete(lease, packed("result"), retention=RETENTION)
    record = store.get(lease.record_id)
    assert expires_at == record.expires_at
    if alone:
        assert expires_at == claimed.updated_at + RETENTION * left
    else:
        assert expires_at == record.updated_at + RETENTION


@pytest.mark.leg("postgres18", "postgres16")
def test_R77_answer_of_single_is_kept_for_the_retention(store):
    with store.atomic():
        lease = won(store.claim(claim_request(transaction="single")))
        expires_at = store.complete(lease, packed("result"), retention=HOUR)
    record = store.get(lease.record_id)
    assert expires_at == record.expires_at == record.updated_at + HOUR


def test_failure_keeps_the_row_and_the_fingerprint(store):
    lease = claims.live(store, claim_request())
    before = row()
    store.fail(lease, "builtins.RuntimeError")
    record = store.get(lease.record_id)
    assert (record.state, record.error) == (State.FAILED, "builtins.RuntimeError")
    assert (record.fingerprint, record.lease_until) == (claims.FINGERPRINT, None)
    assert (record.epoch, record.token) == (lease.fencing_token, lease.token)
    assert record.expires_at == before["expires_at"]


def test_release_keeps_the_row_and_forgets_the_fingerprint(store):
    lease = claims.live(store, claim_request())
    before = row()
    store.release(lease)
    record = store.get(lease.record_id)
    assert (record.state, record.fingerprint, record.lease_until) == (State.RELEASED, None, None)
    assert (record.epoch, record.token) == (lease.fencing_token, lease.token)
    assert record.expires_at == before["expires_at"]


@pytest.mark.parametrize(
    "end",
    [lambda store, lease: store.fail(lease, "again"), lambda store, lease: store.release(lease)],
    ids=["fail", "release"],
)
def test_ending_sent_again_changes_nothing(store, end):
    lease = claims.live(store, claim_request())
    end(store, lease)
    before = row()
    end(store, lease)
    assert row() == before


@pytest.mark.parametrize(
    "end",
    [
        lambda store, lease: store.complete(lease, b"", retention=HOUR),
        lambda store, lease: store.fail(lease, ""),
        lambda store, lease: store.release(lease),
    ],
    ids=["complete", "fail", "release"],
)
def test_R71_record_that_did_not_expire_does_so_once_it_is_ended(store, end):
    lease = claims.live(store, claim_request(on_stale="refuse", retention=HOUR))
    end(store, lease)
    record = store.get(lease.record_id)
    assert record.expires_at == record.updated_at + HOUR


def test_R79_a_long_error_is_cut(store):
    lease = claims.live(store, claim_request())
    store.fail(lease, "e" * 1000)
    assert len(store.get(lease.record_id).error) == 255


def test_renewal_of_many_leases_is_one_round_trip(store, django_assert_num_queries):
    leases = [claims.lapsed(store, claim_request(f"key {number}")) for number in range(20)]
    # An UPDATE says nothing of its rows on MariaDB: there a second statement does.
    # Inside a transaction, since outside of one it connects anew.
    expected = 2 if connection.vendor == "mysql" else 1
    with transaction.atomic(), django_assert_num_queries(expected):
        held = store.renew(leases, HOUR)
    assert held == set(leases)
    for lease in leases:
        record = store.get(lease.record_id)
        assert HOUR - timedelta(seconds=10) < record.lease_until - record.now <= HOUR


def test_renewal_tells_which_leases_are_lost(store):
    held = claims.live(store, claim_request("held"))
    ended = claims.failed(store, claim_request("ended"))
    taken = claims.lapsed(store, claim_request("taken"))
    claims.live(store, claim_request("taken"))
    swept = claims.lapsed(store, claim_request("swept"))
    expire("swept")
    assert store.sweep() == 1
    assert store.renew([held, ended, taken, swept], HOUR) == {held}


def test_renewal_changes_nothing_but_the_lease(store):
    lease = claims.live(store, claim_request())
    before = row()
    store.renew([lease], HOUR)
    after = row()
    assert after.pop("lease_until") > before.pop("lease_until")
    assert after == before


def test_a_lapsed_lease_that_nobody_took_can_be_renewed(store):
    lease = claims.live(store, claim_request())
    lapse()
    assert store.renew([lease], HOUR) == {lease}
    assert store.get(lease.record_id).live


@pytest.mark.leg("sqlite")
def test_renewal_that_meets_the_write_lock_counts_as_held(two):
    lease = claims.live(two.mine, claim_request())
    with two.mine.atomic():
        claims.live(two.mine, claim_request("another"))
        assert two.other(two.theirs.renew, [lease], HOUR) == {lease}


def test_I9_sweep_removes_only_what_has_expired(store):
    claims.expired(store, claim_request("expired"))
    claims.expired_failed(store, claim_request("expired failed"))
    claims.expired_lapsed(store, claim_request("expired lapsed"))
    for left in (claims.live, claims.lapsed, claims.failed, claims.released, claims.completed):
        left(store, claim_request(left.__name__))
    claims.live_beyond_expiry(store, claim_request("live beyond expiry"))
    assert store.count_expired() == 3
    assert store.sweep() == 3
    assert sorted(IdempotencyRecord.objects.values_list("key", flat=True)) == [
        *("completed", "failed", "lapsed", "live", "live beyond expiry", "released"),
    ]


def test_sweep_deletes_a_batch_of_the_longest_expired(store):
    for number in range(5):
        claims.expired(store, claim_request(str(number)))
        older = claims.LONG_AGO - timedelta(days=number)
        IdempotencyRecord.objects.filter(key=str(number)).update(expires_at=older)
    assert [store.sweep(limit=2), store.sweep(limit=2)] == [2, 2]
    assert list(IdempotencyRecord.objects.values_list("key", flat=True)) == ["0"]
    assert [store.sweep(limit=2), store.sweep(limit=2)] == [1, 0]
