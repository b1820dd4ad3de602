"""R51, R88: a waiter holds no transaction and no pooled connection, so nobody starves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

import django_idempotency as idempotency
from tests.app.models import Effect
from tests.services.processes import wait_until
from tests.unit.http.api import replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.conftest import Looks, sending, together
from tests.unit.views.work import Gate

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16"),
]

LONG = 30


@pytest.fixture
def pool(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``pool(size)``: the default database behind a pool of so many connections."""
    settings = connections.settings["default"]
    default: Any = connections["default"]
    default.close()

    def of(size: int, timeout: float = 5) -> Any:
        pooled = {"min_size": 1, "max_size": size, "timeout": timeout}
        monkeypatch.setitem(settings, "OPTIONS", {**settings["OPTIONS"], "pool": pooled})
        return default.pool

    yield of
    default.close()
    default.close_pool()


def connections_in_use(pool: Any) -> int:
    figures = pool.get_stats()
    return int(figures["pool_size"] - figures["pool_available"])


@pytest.mark.parametrize(
    ("kind", "transaction"),
    [("function", "joined"), ("drf", "separate"), ("above-api-view", "single")],
)
def test_R51_waiters_hold_no_pooled_connection(
    kind: str, transaction: str, policy: SetPolicy, pool: Any, gate: Gate, looks: Looks
) -> None:
    """Five waiters and an owner share two connections, and leave one of them to others."""
    policy(TRANSACTION=transaction, WAIT=LONG)
    two = pool(2)
    with together(sending(kind)) as first:
        assert gate.reached.wait(10)
        with together(*[sending(kind)] * 5) as others:
            looks.wait_for(10)
            wait_until(lambda: connections_in_use(two) == 1, seconds=10, what="idle waiters")
            with together(sending(kind, {"name": "else"}, key="key-2")) as another:
                pass
            assert another[0].status_code == 201
            gate.open.set()

    assert (first[0].status_code, replayed(first[0])) == (201, False)
    assert [replayed(other) for other in others] == [True] * 5
    assert Effect.objects.count() == 2


def test_R51_waiters_of_run_hold_no_pooled_connection(pool: Any, gate: Gate, looks: Looks) -> None:
    def call() -> Any:
        Effect.objects.count()  # a connection that the caller has used before
        return idempotency.run(
            lambda lease: gate.passed(), key="k", scope="s", wait=LONG, transaction="separate"
        )

    two = pool(2)
    with together(call):
        assert gate.reached.wait(10)
        with together(*[call] * 4) as others:
            looks.wait_for(8)
            wait_until(lambda: connections_in_use(two) == 1, seconds=10, what="idle waiters")
            gate.open.set()

    assert [outcome.replayed for outcome in others] == [True] * 4


def test_R51_waiters_on_another_store_hold_no_pooled_connection(
    settings: Any, policy: SetPolicy, pool: Any, gate: Gate
) -> None:
    """They have used the database, to see who asks, and the store is none of it."""
    settings.IDEMPOTENCY = {
        "default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore", "WAIT": LONG}
    }
    two = pool(2)
    with together(sending("function")) as first:
        assert gate.reached.wait(10)
        with together(*[sending("function")] * 3) as others:
            wait_until(lambda: two.get_stats()["requests_num"] >= 4, seconds=10, what="waiters")
            wait_until(lambda: connections_in_use(two) <= 1, seconds=10, what="idle waiters")
            gate.open.set()

    assert [replayed(answer) for answer in (*first, *others)] == [False, True, True, True]


@pytest.mark.parametrize(
    ("kind", "atomic", "transaction"),
    [
        ("function", False, "joined"),
        ("function", True, "separate"),
        ("drf", True, "joined"),
        ("above-api-view", False, "separate"),
    ],
)
def test_R51_waiters_hold_no_transaction(
    kind: str,
    atomic: bool,
    transaction: str,
    policy: SetPolicy,
    monkeypatch: pytest.MonkeyPatch,
    gate: Gate,
    looks: Looks,
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
    policy(TRANSACTION=transaction, WAIT=LONG)
    owners = 1 if atomic or transaction == "joined" else 0

    def open_transactions() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND state LIKE 'idle in transaction%'"
            )
            return int(cursor.fetchone()[0])

    with together(sending(kind)):
        assert gate.reached.wait(10)
        with together(*[sending(kind)] * 3) as others:
            looks.wait_for(6)
            wait_until(lambda: open_transactions() == owners, seconds=10, what="idle waiters")
            gate.open.set()

    assert [replayed(other) for other in others] == [True] * 3


KEYS = [f"key-{number}" for number in range(5)]


def test_R51_100_waiting_duplicates_on_5_keys_with_3_connections(
    policy: SetPolicy, pool: Any, gate: Gate, looks: Looks, runs: list[str]
) -> None:
    """They all wait at once; all are answered, and nobody has asked for a connection in vain."""
    policy(TRANSACTION="separate", WAIT=60)
    three = pool(3, timeout=20)
    bodies = [{"name": key, "then": "away"} for key in KEYS]
    owners = [sending("function", body, key=body["name"]) for body in bodies]
    with together(*owners) as first:
        wait_until(lambda: len(runs) == len(KEYS), seconds=10, what="owners at the gate")
        with together(*owners * 20) as others:
            looks.wait_for(200)
            gate.open.set()

    assert [replayed(answer) for answer in first] == [False] * 5
    assert [replayed(answer) for answer in others] == [True] * 100
    assert {answer.content for answer in others} == {answer.content for answer in first}
    assert sorted(runs) == sorted(KEYS)
    assert three.get_stats().get("requests_errors", 0) == 0


def test_R51_duplicates_of_owners_that_have_all_the_connections(
    policy: SetPolicy, pool: Any, runs: list[str]
) -> None:
    """Owners of `joined` keep theirs: duplicates get to look as soon as one comes back."""
    policy(TRANSACTION="joined", WAIT=60)
    three = pool(3, timeout=20)
    bodies = [{"name": key, "then": "slow"} for key in KEYS]
    requests = [sending("function", body, key=body["name"]) for body in bodies]
    with together(*requests * 10) as answers:
        pass

    assert {getattr(answer, "status_code", answer) for answer in answers} == {201}
    assert sum(not replayed(answer) for answer in answers) == len(KEYS)
    assert sorted(runs) == sorted(KEYS)
    assert three.get_stats().get("requests_errors", 0) == 0
