"""Records as the server keeps them: numbers, native expiry, damage, and pages of a SCAN."""

from __future__ import annotations

import itertools
from datetime import timedelta
from uuid import uuid4

import pytest

from django_idempotency.claims import Resolution
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis.store import SCANNED
from tests.claims import DAY, HOUR, OTHER_FINGERPRINT, asked, found, record_id, won
from tests.integration.redis.conftest import MOMENT, pages_of

#: Digits that a double holds, and that Lua's tostring would make 9.0071992547409e+15 of.
LARGE = 9_007_199_254_740_000


@pytest.fixture
def name(prefix):
    """The server's key of the record of "key"."""
    return f"{prefix}{record_id()}"


def test_I2_numbers_of_16_digits_survive_exactly(store, client, name):
    store.release(won(store.claim(asked())))
    client.hset(name, "epoch", str(LARGE))

    lease = won(store.claim(asked()))

    assert lease.fencing_token == LARGE + 1
    assert client.hget(name, "epoch") == b"9007199254740001"
    times = client.hmget(name, "lease_until", "created_at", "updated_at", "expires_at")
    assert all(len(time) == 16 and time.isdigit() for time in times)
    assert store.renew([lease], HOUR) == {lease}
    store.fail(lease, "boom")
    assert store.resolve(record_id(), Resolution("release", epoch=LARGE + 1, state=State.FAILED))
    assert client.hget(name, "epoch") == b"9007199254740002"


# Native expiry.


@pytest.fixture
def ttl(client, name):
    """What is left, to the minute, until the server deletes the record; None if it never will."""

    def left():
        left = client.pttl(name)
        assert left != -2, "there is no record"
        return None if left == -1 else timedelta(minutes=round(left / 60_000))

    return left


def test_server_deletes_a_record_at_the_end_of_its_retention(store, ttl):
    lease = won(store.claim(asked(retention=DAY, max_duration=HOUR, lease=MOMENT)))
    assert ttl() == 1.1 * DAY  # not when the lease lapses
    store.renew([lease], HOUR)
    assert ttl() == 1.1 * DAY
    store.complete(lease, b"result", retention=HOUR)
    assert ttl() == HOUR


@pytest.mark.parametrize("ending", ["fail", "release"])
def test_I9_R71_it_keeps_a_record_as_long_as_a_renewed_lease_or_until_it_is_ended(
    store, ttl, ending
):
    endings = {"fail": lambda lease: store.fail(lease, "boom"), "release": store.release}
    lease = won(store.claim(asked(retention=HOUR, max_duration=HOUR, lease=MOMENT)))
    store.renew([lease], DAY)
    assert ttl() == DAY
    endings[ending](lease)
    assert ttl() == 1.1 * HOUR

    lease = won(store.claim(asked(retention=DAY, on_stale="refuse", lease=MOMENT)))
    store.renew([lease], MOMENT)
    assert ttl() is None
    endings[ending](lease)
    assert ttl() == DAY


@pytest.mark.parametrize(
    ("action", "on_stale", "keeps"),
    [
        ("complete", "take_over", 2 * HOUR),
        ("release", "take_over", 1.1 * DAY),
        ("release", "refuse", 2 * HOUR),
        ("expire", "take_over", timedelta(minutes=1)),
    ],
)
def test_it_keeps_a_record_for_as_long_as_an_operator_has_decided(
    store, ttl, action, on_stale, keeps
):
    lease = won(store.claim(asked(retention=DAY, max_duration=HOUR, on_stale=on_stale)))
    seen = {"epoch": lease.fencing_token, "state": State.IN_PROGRESS, "force": True}
    result = b"by hand" if action == "complete" else None
    assert store.resolve(record_id(), Resolution(action, result=result, retention=2 * HOUR, **seen))
    assert ttl() == keeps


@pytest.mark.parametrize("ended", [True, False], ids=["completed", "lapsed"])
def test_R74_expiry_is_compared_in_the_claim_and_not_left_to_the_server(store, client, name, ended):
    first = won(store.claim(asked(lease=-HOUR)))
    if ended:
        store.complete(first, b"result", retention=HOUR)
    client.persist(name)
    client.hset(name, "expires_at", "1")
    second = won(store.claim(asked(fingerprints=(OTHER_FINGERPRINT,))))
    assert second.fencing_token > first.fencing_token
    assert not second.takeover
    record = found(store)
    assert (record.attempts, record.fingerprint) == (1, OTHER_FINGERPRINT)


# Damage.


def is_no_hash(client, name):
    client.delete(name)
    client.set(name, "something else")


def is_another_hash(client, name):
    client.delete(name)
    client.hset(name, "something", "else")


DAMAGE = {
    "no hash": is_no_hash,
    "another hash": is_another_hash,
    "no such state": lambda client, name: client.hset(name, "state", "DONE"),
    "an epoch that is no number": lambda client, name: client.hset(name, "epoch", "many"),
    **{
        f"no {field}": lambda client, name, field=field: client.hdel(name, field)
        for field in ("token", "lease_until", "created_at", "attempts")
    },
}


@pytest.mark.parametrize("expired", [False, True], ids=["live", "expired"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_record_is_an_error_and_never_runs_again(store, client, name, damage, expired):
    won(store.claim(asked(lease=-HOUR)))
    if expired:
        client.persist(name)
        client.hset(name, "expires_at", "1")
    DAMAGE[damage](client, name)
    with pytest.raises(StoreError):
        store.claim(asked())
    with pytest.raises(StoreError):
        store.get(record_id())


def test_failed_record_that_never_expires_is_an_error_and_never_runs_again(store, client, name):
    store.fail(won(store.claim(asked())), "boom")
    client.hdel(name, "expires_at")
    with pytest.raises(StoreError):
        store.claim(asked())


def test_owner_of_a_damaged_record_is_not_told_that_it_is_gone(store, client, name):
    lease = won(store.claim(asked()))
    client.hdel(name, "state")
    with pytest.raises(LeaseLost) as lost:
        store.complete(lease, b"result", retention=HOUR)
    assert not lost.value.gone


def test_R95_a_claim_that_wins_by_a_forged_epoch_is_an_error(store, client, name):
    store.release(won(store.claim(asked())))
    client.hset(name, "epoch", "inf")
    with pytest.raises(StoreError):
        store.claim(asked())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scope", b"\xff"),
        ("fingerprint", b"no hex"),
        ("created_at", "9" * 30),
        ("attempts", "1" * 5000),
        *((field, None) for field in ("result", "expires_at", "scope")),
    ],
)
def test_R95_forged_or_missing_field_of_a_completed_record_is_an_error(
    store, client, name, field, value
):
    store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    client.hdel(name, field) if value is None else client.hset(name, field, value)
    with pytest.raises(StoreError):
        store.claim(asked())
    with pytest.raises(StoreError):
        store.get(record_id())


def test_damage_to_one_record_is_logged_and_hides_no_other(store, client, prefix, caplog):
    for number, damage in enumerate(DAMAGE.values()):
        store.claim(asked(f"key {number}"))
        damage(client, f"{prefix}{record_id(f'key {number}')}")
    store.claim(asked("whole"))

    page = store.browse()

    assert [record.key for record in page.records] == ["whole"]
    named = {str(record_id(f"key {number}"))[:12] for number in range(len(DAMAGE))}
    assert {*page.damaged} == named
    assert len(caplog.messages) == len(DAMAGE)
    assert str(record_id("key 0"))[:12] in caplog.text
    assert "cannot be shown" in caplog.text
    assert "many" not in caplog.text


def test_R69_damage_to_one_record_keeps_no_renewal_from_the_others(store, client, name):
    leases = [won(store.claim(asked(key, lease=HOUR))) for key in ("key", "another")]
    is_no_hash(client, name)
    held = store.renew(leases, DAY)
    assert held == set(leases)
    renewed = found(store, "another")
    assert renewed.lease_until - renewed.now > HOUR


@pytest.fixture
def others(client):
    """Keys of somebody else's, as many as are asked for."""
    names = []

    def put(number, *more):
        names.extend([*(f"{uuid4()}" for _ in range(number)), *more])
        client.mset(dict.fromkeys(names, "somebody else's"))

    yield put
    client.delete(*names)


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_have_every_record_once_and_no_more_than_their_limit(store, others, prefix, limit):
    others(100, f"{prefix}no record id")
    keys = [f"key {number}" for number in range(40)]
    for key in keys:
        store.claim(asked(key))
    pages = pages_of(store, limit)
    assert all(len(page) <= limit for page in pages)
    assert sorted(itertools.chain(*pages)) == sorted(map(record_id, keys))


def test_a_page_ends_in_its_time_be_it_empty(store, others):
    others(5 * SCANNED)
    page = store.browse(limit=1, seconds=0)
    assert (page.records, page.cursor is None) == ((), False)


def test_a_page_without_results_has_the_server_send_none(store, monkeypatch):
    store.complete(won(store.claim(asked())), b"a result", retention=HOUR)
    answers, run_many = [], store._clients.run_many

    def noted(script, calls):
        answers.append(run_many(script, calls))
        return answers[-1]

    monkeypatch.setattr(store._clients, "run_many", noted)
    for results, expected in ((False, None), (True, b"a result")):
        [record] = store.browse(results=results).records
        assert record.result == expected
        assert ("a result" in repr(answers)) is results
        answers.clear()
    assert found(store).result == b"a result"


@pytest.mark.parametrize("prefix", ["a*c:", "[abc]:", "a?c:", "a\\c:"])
def test_a_prefix_is_taken_as_it_is(url, make_store, prefix):
    own = f"{uuid4().hex}{prefix}"
    make_store(url, prefix=own.replace(prefix, "abc:")).claim(asked("of another"))
    store = make_store(url, prefix=own)
    store.claim(asked())
    assert list(itertools.chain(*pages_of(store, 100))) == [record_id()]


@pytest.mark.parametrize("cursor", ["", "17", "//", "/x/", "/0/abc", "/-1/", "a/b/c/d"])
def test_cursor_of_another_store_is_refused(store, cursor):
    with pytest.raises(ValueError, match="Redis store did not make this cursor"):
        store.browse(cursor=cursor)
