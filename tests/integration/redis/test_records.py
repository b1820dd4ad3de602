"""Records as the server keeps them: their numbers, their native expiry, and damage done to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from django_idempotency.claims import Resolution
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import DAY, HOUR, MOMENT, asked, found, lapse, record_id, won

#: Digits that a double holds, and that Lua's tostring would make 9.0071992547409e+15 of.
LARGE = 9_007_199_254_740_000


@pytest.fixture
def name(prefix: str) -> str:
    """The server's key of the record of "key"."""
    return f"{prefix}{record_id()}"


def test_server_that_has_forgotten_the_scripts_is_told_them_again(
    store: RedisStore, client: redis.Redis
) -> None:
    lease = won(store.claim(asked()))
    client.script_flush()
    won(store.claim(asked("another")))
    client.script_flush()
    assert store.renew([lease], HOUR) == {lease}


# Numbers.


def test_I2_epochs_of_16_digits_survive_exactly(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    store.release(won(store.claim(asked())))
    client.hset(name, "epoch", str(LARGE))

    lease = won(store.claim(asked()))

    assert lease.fencing_token == LARGE + 1
    assert client.hget(name, "epoch") == b"9007199254740001"
    assert store.renew([lease], HOUR) == {lease}
    store.fail(lease, "boom")
    assert store.resolve(record_id(), Resolution("release", epoch=LARGE + 1, state=State.FAILED))
    assert client.hget(name, "epoch") == b"9007199254740002"


def test_I7_epochs_that_differ_in_the_last_digit_are_not_the_same(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    lease = won(store.claim(asked()))
    client.hset(name, "epoch", str(lease.fencing_token + 1))
    with pytest.raises(LeaseLost):
        store.complete(lease, b"result", retention=HOUR)
    assert store.renew([lease], HOUR) == set()


def test_times_are_whole_microseconds(store: RedisStore, client: redis.Redis, name: str) -> None:
    store.claim(asked())
    times = client.hmget(name, "epoch", "lease_until", "created_at", "updated_at", "expires_at")
    assert all(time is not None and len(time) == 16 and time.isdigit() for time in times)


# Native expiry.


@pytest.fixture
def ttl(client: redis.Redis, name: str) -> Callable[[], timedelta | None]:
    """What is left, to the minute, until the server deletes the record; None if it never will."""

    def left() -> timedelta | None:
        left: Any = client.pttl(name)
        assert left != -2, "there is no record"
        return None if left == -1 else timedelta(minutes=round(left / 60_000))

    return left


def test_server_deletes_a_record_at_the_end_of_its_retention(store: RedisStore, ttl: Any) -> None:
    lease = won(store.claim(asked(retention=DAY, max_duration=HOUR, lease=MOMENT)))
    assert ttl() == DAY  # not when the lease lapses
    store.renew([lease], HOUR)
    assert ttl() == DAY
    store.complete(lease, b"result", retention=HOUR)
    assert ttl() == HOUR


def test_server_deletes_it_not_before_the_longest_attempt_has_ended(
    store: RedisStore, ttl: Any
) -> None:
    store.claim(asked(retention=HOUR, max_duration=DAY, lease=HOUR))
    assert ttl() == DAY + HOUR


def end(store: RedisStore, lease: Any, ending: str, retention: timedelta) -> None:
    if ending == "complete":
        store.complete(lease, b"result", retention=retention)
    else:
        store.fail(lease, "boom") if ending == "fail" else store.release(lease)


@pytest.mark.parametrize("ending", ["fail", "release"])
def test_I9_renewal_beyond_the_expiry_keeps_the_record_as_long_as_the_lease(
    store: RedisStore, ttl: Any, ending: str
) -> None:
    lease = won(store.claim(asked(retention=HOUR, max_duration=HOUR, lease=MOMENT)))
    store.renew([lease], DAY)
    assert ttl() == DAY
    end(store, lease, ending, HOUR)
    assert ttl() == HOUR


@pytest.mark.parametrize("ending", ["complete", "fail", "release"])
def test_R71_record_whose_take_over_is_refused_stays_until_it_is_ended(
    store: RedisStore, ttl: Any, ending: str
) -> None:
    store.fail(won(store.claim(asked())), "boom")
    lease = won(store.claim(asked(retention=DAY, on_stale="refuse", lease=MOMENT)))
    store.renew([lease], MOMENT)
    lapse(store)
    assert ttl() is None
    end(store, lease, ending, DAY)
    assert ttl() == DAY


def test_R74_expiry_is_compared_in_the_claim_and_not_left_to_the_server(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    first = won(store.claim(asked()))
    store.complete(first, b"result", retention=HOUR)
    client.persist(name)
    client.hset(name, "expires_at", "1")

    second = won(store.claim(asked(fingerprints=(b"other" * 6,))))

    assert second.fencing_token > first.fencing_token
    assert found(store).attempts == 1


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
    "no such state": lambda client, name: client.hset(name, "state", "DONE"),
    "an epoch that is no number": lambda client, name: client.hset(name, "epoch", "many"),
    **{
        f"no {field}": lambda client, name, field=field: client.hdel(name, field)
        for field in ("state", "epoch", "token", "lease_until", "created_at", "attempts")
    },
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_record_is_an_error_and_never_runs_again(
    store: RedisStore, client: redis.Redis, name: str, damage: str
) -> None:
    won(store.claim(asked(lease=-HOUR)))
    DAMAGE[damage](client, name)

    for look in (lambda: store.claim(asked()), lambda: store.get(record_id())):
        with pytest.raises(StoreError):
            look()
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
        *((field, b"\xff") for field in ("scope", "key", "operation", "error")),
        ("fingerprint", b"no hex"),
        ("created_at", "9" * 30),
        ("attempts", "1" * 5000),
        *((field, None) for field in ("result", "expires_at", "scope", "updated_at", "error")),
    ],
)
def test_R95_forged_or_missing_field_of_a_completed_record_is_an_error(
    store: RedisStore, client: redis.Redis, name: str, field: str, value: Any
) -> None:
    store.complete(won(store.claim(asked())), b"result", retention=HOUR)
    client.hdel(name, field) if value is None else client.hset(name, field, value)

    for look in (lambda: store.claim(asked()), lambda: store.get(record_id())):
        with pytest.raises(StoreError):
            look()


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


def test_R69_damage_to_one_record_keeps_no_renewal_from_the_others(
    store: RedisStore, client: redis.Redis, name: str
) -> None:
    leases = [won(store.claim(asked(key, lease=HOUR))) for key in ("key", "another")]
    _no_hash(client, name)

    held = store.renew(leases, DAY)

    assert held == set(leases)
    renewed = found(store, "another")
    assert renewed.lease_until is not None
    assert renewed.lease_until - renewed.now > HOUR
