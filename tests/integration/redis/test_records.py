"""Records as the server keeps them: their numbers, their native expiry, and damage done to them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import redis

from django_idempotency.engine import Engine
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import DAY, HOUR, MOMENT, asked, found, lapse, record_id, won
from tests.meetings import MEANS, READERS, what_it_means

pytestmark = pytest.mark.usefixtures("version")

#: Digits that a double holds, and that Lua's tostring would make 9.0071992547409e+15 of.
LARGE = 9_007_199_254_740_000


@pytest.fixture
def name(prefix: str) -> str:
    """The server's key of the record of "key"."""
    return f"{prefix}{record_id()}"


# Scripts.


@pytest.mark.parametrize("operation", ["claim", "complete", "renew", "get"])
def test_server_that_has_forgotten_the_scripts_is_told_them_again(
    store: RedisStore, client: redis.Redis, operation: str
) -> None:
    lease = won(store.claim(asked()))
    client.script_flush()
    if operation == "claim":
        won(store.claim(asked("another")))
    elif operation == "complete":
        store.complete(lease, b"result", retention=HOUR)
    elif operation == "renew":
        assert store.renew([lease], HOUR) == {lease}
    assert found(store).token == lease.token


# Numbers.


def test_I2_epochs_of_16_digits_survive_exactly(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    lease = won(store.claim(asked()))
    store.release(lease)
    client.hset(name, "epoch", str(LARGE))

    lease = won(store.claim(asked()))

    assert lease.fencing_token == LARGE + 1
    assert client.hget(name, "epoch") == b"9007199254740001"
    assert store.renew([lease], HOUR) == {lease}
    store.complete(lease, b"result", retention=HOUR)
    assert found(store).epoch == LARGE + 1


def test_epochs_that_differ_in_the_last_digit_are_not_the_same(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    lease = won(store.claim(asked()))
    client.hset(name, "epoch", str(lease.fencing_token + 1))
    with pytest.raises(LeaseLost):
        store.complete(lease, b"result", retention=HOUR)
    assert store.renew([lease], HOUR) == set()


def test_resolution_adds_one_to_the_epoch_exactly(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    store.fail(won(store.claim(asked())), "boom")
    client.hset(name, "epoch", str(LARGE))
    assert store.resolve(record_id(), "release", epoch=LARGE, state=State.FAILED)
    assert client.hget(name, "epoch") == b"9007199254740001"


def test_times_are_whole_microseconds(store: RedisStore, client: redis.Redis, name: str) -> None:
    store.claim(asked())
    times = client.hmget(name, "epoch", "lease_until", "created_at", "updated_at", "expires_at")
    assert all(time is not None and len(time) == 16 and time.isdigit() for time in times)


# Native expiry.


def ttl(client: redis.Redis, name: str) -> timedelta | None:
    """What is left until the server deletes the record; None if it never will."""
    left: Any = client.pttl(name)
    assert left != -2, "there is no record"
    return None if left == -1 else timedelta(milliseconds=left)


def is_about(left: timedelta | None, expected: timedelta) -> bool:
    return left is not None and abs(left - expected) < timedelta(seconds=10)


def test_server_deletes_a_record_at_the_end_of_its_retention(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    lease = won(store.claim(asked(retention=DAY, lease=MOMENT)))
    assert is_about(ttl(client, name), DAY)  # not when the lease lapses
    store.complete(lease, b"result", retention=HOUR)
    assert is_about(ttl(client, name), HOUR)


def test_server_deletes_it_not_before_the_longest_attempt_has_ended(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    store.claim(asked(retention=HOUR, max_duration=DAY, lease=HOUR))
    assert is_about(ttl(client, name), DAY + HOUR)


@pytest.mark.parametrize("ending", ["fail", "release"])
def test_other_endings_leave_the_time_as_it_was(
    store: RedisStore, client: redis.Redis, name: str, ending: str
) -> None:
    lease = won(store.claim(asked(retention=DAY)))
    store.fail(lease, "boom") if ending == "fail" else store.release(lease)
    assert is_about(ttl(client, name), DAY)


def test_I9_renewal_beyond_the_expiry_keeps_the_record_as_long_as_the_lease(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    lease = won(store.claim(asked(retention=HOUR, max_duration=HOUR, lease=MOMENT)))
    store.renew([lease], DAY)
    assert is_about(ttl(client, name), DAY)
    store.fail(lease, "boom")
    assert is_about(ttl(client, name), HOUR)


def test_renewal_within_the_time_leaves_it(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    lease = won(store.claim(asked(retention=DAY)))
    store.renew([lease], HOUR)
    assert is_about(ttl(client, name), DAY)


@pytest.mark.parametrize("ending", ["complete", "fail", "release"])
def test_R71_record_whose_take_over_is_refused_stays_until_it_is_ended(
    store: RedisStore, client: redis.Redis, name: str, ending: str
) -> None:
    lease = won(store.claim(asked(retention=DAY, on_stale="refuse", lease=MOMENT)))
    store.renew([lease], MOMENT)
    lapse(store)
    assert ttl(client, name) is None
    if ending == "complete":
        store.complete(lease, b"result", retention=DAY)
    else:
        store.fail(lease, "boom") if ending == "fail" else store.release(lease)
    assert is_about(ttl(client, name), DAY)


def test_R71_refusing_take_overs_takes_the_time_off_a_record_that_had_one(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    store.fail(won(store.claim(asked())), "boom")
    assert ttl(client, name) is not None
    won(store.claim(asked(on_stale="refuse")))
    assert ttl(client, name) is None


def test_R74_expiry_is_compared_in_the_claim_and_not_left_to_the_server(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    first = won(store.claim(asked()))
    store.complete(first, b"result", retention=MOMENT)
    client.persist(name)
    client.hset(name, "expires_at", "1")

    second = won(store.claim(asked(fingerprints=(b"other" * 6,))))

    assert second.fencing_token > first.fencing_token
    assert found(store).attempts == 1


def test_I7_owner_of_a_record_that_was_deleted_has_lost_its_lease(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    lease = won(store.claim(asked()))
    client.delete(name)
    assert store.renew([lease], HOUR) == set()
    store.fail(lease, "boom")
    store.release(lease)
    with pytest.raises(LeaseLost):
        store.complete(lease, b"result", retention=HOUR)
    assert client.exists(name) == 0


# Damage.


def _no_hash(client: redis.Redis, name: str) -> None:
    client.delete(name)
    client.set(name, "something else")


def _another_hash(client: redis.Redis, name: str) -> None:
    client.delete(name)
    client.hset(name, "something", "else")


DAMAGE: dict[str, Any] = {
    "no hash": _no_hash,
    "another hash": _another_hash,
    "no state": lambda client, name: client.hdel(name, "state"),
    "no such state": lambda client, name: client.hset(name, "state", "DONE"),
    "no epoch": lambda client, name: client.hdel(name, "epoch"),
    "an epoch that is no number": lambda client, name: client.hset(name, "epoch", "many"),
    "no token": lambda client, name: client.hdel(name, "token"),
    "no lease": lambda client, name: client.hdel(name, "lease_until"),
    "no creation": lambda client, name: client.hdel(name, "created_at"),
    "no attempts": lambda client, name: client.hdel(name, "attempts"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_record_is_an_error_and_never_runs_again(
    store: RedisStore, client: redis.Redis, name: str, damage: str
) -> None:
    lease = won(store.claim(asked(lease=MOMENT)))
    DAMAGE[damage](client, name)

    with pytest.raises(StoreError):
        store.claim(asked())
    with pytest.raises(StoreError):
        store.get(lease.record_id)
    with pytest.raises(StoreError):
        asyncio.run(store.aclaim(asked()))


@pytest.mark.parametrize("epoch", ["inf", "1e400"])
def test_R95_a_claim_that_wins_by_a_forged_epoch_is_an_error(
    store: RedisStore, client: redis.Redis, name: str, epoch: str
) -> None:
    store.release(won(store.claim(asked())))
    client.hset(name, "epoch", epoch)

    with pytest.raises(StoreError):
        store.claim(asked())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scope", b"\xff"),
        ("key", b"\xff"),
        ("operation", b"\xff"),
        ("error", b"\xff"),
        ("fingerprint", b"no hex"),
        ("created_at", "9" * 30),
        ("attempts", "1" * 5000),
    ],
    ids=["scope", "key", "operation", "error", "fingerprint", "created_at", "attempts"],
)
def test_R95_forged_field_of_a_record_is_an_error(
    store: RedisStore, client: redis.Redis, name: str, field: str, value: Any
) -> None:
    store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    client.hset(name, field, value)

    with pytest.raises(StoreError):
        store.get(record_id())


@pytest.mark.parametrize("field", ["result", "expires_at", "scope", "key", "updated_at", "error"])
def test_completed_record_that_lacks_a_field_is_an_error(
    store: RedisStore, client: redis.Redis, name: str, field: str
) -> None:
    store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    client.hdel(name, field)
    with pytest.raises(StoreError):
        store.claim(asked())
    with pytest.raises(StoreError):
        store.get(record_id())


def test_damage_to_one_record_is_logged_and_hides_no_other(
    store: RedisStore, client: redis.Redis, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number, damage in enumerate(DAMAGE.values()):
        store.claim(asked(f"key {number}"))
        damage(client, f"{prefix}{record_id(f'key {number}')}")
    store.claim(asked("whole"))

    page = store.browse()

    assert [record.key for record in page.records] == ["whole"]
    assert len(caplog.messages) == len(DAMAGE)
    assert str(record_id("key 0"))[:12] in caplog.text
    assert "cannot be shown" in caplog.text
    assert "many" not in caplog.text


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_R69_damage_to_one_record_keeps_no_renewal_from_the_others(
    store: RedisStore, client: redis.Redis, name: str, way: str
) -> None:
    leases = [won(store.claim(asked(key, lease=HOUR))) for key in ("key", "another")]
    client.delete(name)
    client.set(name, "no hash")

    held = store.renew(leases, DAY) if way == "threads" else asyncio.run(store.arenew(leases, DAY))

    assert held == set(leases)
    renewed = found(store, "another")
    assert renewed.lease_until is not None
    assert renewed.lease_until - renewed.now > HOUR


@pytest.mark.parametrize("reader", READERS)
def test_I4_record_of_a_call_means_the_same_to_a_block_and_to_coroutines(
    store: RedisStore, reader: str
) -> None:
    assert what_it_means(Engine(store), reader) == MEANS
