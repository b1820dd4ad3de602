"""Calls whose answers are lost: sent again, by the store or by botocore, each is done once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.config import Config

from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress, LeaseLost, StoreError
from django_idempotency.records import State
from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.integration.dynamodb.claims import HOUR, asked, found, operation, record_id, won
from tests.integration.dynamodb.conftest import Options
from tests.integration.dynamodb.wire import Wire
from tests.services.proxy import Proxy

# Of the body, which goes out after the head: when the proxy sees it, the server has it all.
UPDATE = b'"UpdateExpression"'
BOTOCORES = Config(retries={"mode": "standard", "total_max_attempts": 3})


@pytest.fixture(params=["moto", "dynalite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["the store", "botocore"])
def resender(request: pytest.FixtureRequest) -> str:
    """Who sends again: the store does, unless a botocore that was told to is faster."""
    return str(request.param)


@pytest.fixture
def store(options: Options, proxied: tuple[Proxy, str], resender: str) -> DynamoDBStore:
    store = DynamoDBStore(**options(endpoint_url=proxied[1]))
    if resender == "botocore":
        client = store.table.client
        ours = client.config()
        client.config = lambda: ours.merge(BOTOCORES)  # type: ignore[method-assign]
    return store


@pytest.fixture
def wire(proxied: tuple[Proxy, str]) -> Proxy:
    return proxied[0]


def test_R68_claim_is_won_once(store: DynamoDBStore, wire: Proxy) -> None:
    sent = Wire(store)
    wire.cut_after(UPDATE)

    lease = won(store.claim(asked()))

    assert wire.fired.wait(5)
    assert sent.taken()[:2] == ["UpdateItem", "UpdateItem"]
    record = found(store)
    assert (record.token, record.epoch, record.attempts) == (lease.token, lease.fencing_token, 1)


def test_R26_work_runs_once_when_the_answer_to_its_claim_is_lost(
    store: DynamoDBStore, wire: Proxy
) -> None:
    runs: list[object] = []
    wire.cut_after(UPDATE)

    first = Engine(store).run(operation(), runs.append)
    again = Engine(store).run(operation(), runs.append)

    assert (len(runs), first.replayed, again.replayed) == (1, False, True)


def test_R68_take_over_is_won_once(store: DynamoDBStore, wire: Proxy) -> None:
    first = won(store.claim(asked()))
    store.fail(first, "boom")
    wire.cut_after(UPDATE)

    lease = won(store.claim(asked()))

    record = found(store)
    assert wire.fired.wait(5)
    assert (record.attempts, record.epoch) == (2, lease.fencing_token)
    assert lease.fencing_token == first.fencing_token + 1


def test_R68_completion_is_kept(store: DynamoDBStore, wire: Proxy) -> None:
    lease = won(store.claim(asked()))
    wire.cut_after(UPDATE)

    expires_at = store.complete(lease, b"done", retention=HOUR)

    assert wire.fired.wait(5)
    record = found(store)
    assert (record.state, record.result, record.expires_at) == (
        State.COMPLETED,
        b"done",
        expires_at,
    )


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda store, lease: store.fail(lease, "boom"), State.FAILED),
        (lambda store, lease: store.release(lease), State.RELEASED),
    ],
    ids=["fail", "release"],
)
def test_R68_ending_is_kept(
    store: DynamoDBStore, wire: Proxy, end: Callable[..., None], state: State
) -> None:
    lease = won(store.claim(asked()))
    wire.cut_after(UPDATE)

    end(store, lease)

    assert wire.fired.wait(5)
    assert found(store).state is state


def test_R69_renewal_is_held(store: DynamoDBStore, wire: Proxy) -> None:
    lease = won(store.claim(asked()))
    wire.cut_after(UPDATE)

    assert store.renew([lease], HOUR) == {lease}


def test_operator_is_told_that_it_was_done(store: DynamoDBStore, wire: Proxy) -> None:
    lease = won(store.claim(asked()))
    store.fail(lease, "boom")
    wire.cut_after(UPDATE)

    epoch, state = lease.fencing_token, State.FAILED
    assert store.resolve(record_id(), "complete", epoch=epoch, state=state, result=b"by hand")

    assert wire.fired.wait(5)
    assert found(store).result == b"by hand"


def test_call_that_the_server_missed_is_sent_again(store: DynamoDBStore, wire: Proxy) -> None:
    wire.cut_before(UPDATE)

    won(store.claim(asked()))

    assert wire.fired.wait(5)
    assert found(store).attempts == 1


class TestUnreachable:
    """For longer than `timeout`."""

    @pytest.fixture
    def resender(self) -> str:
        return "the store"

    @pytest.fixture
    def kind(self) -> str:
        return "moto"

    @pytest.fixture
    def store(self, options: Options, proxied: tuple[Proxy, str]) -> DynamoDBStore:
        store = DynamoDBStore(**options(endpoint_url=proxied[1], timeout=0.6))
        won(store.claim(asked("before")))  # its connection is open
        return store

    @pytest.mark.parametrize("how", ["refuse", "swallow"])
    def test_R61_claim_is_an_error_within_the_timeout(
        self, store: DynamoDBStore, wire: Proxy, how: str
    ) -> None:
        getattr(wire, how)()
        if how == "refuse":
            wire.cut()
        begun = time.monotonic()

        with pytest.raises(StoreError) as raised:
            store.claim(asked())

        assert time.monotonic() - begun < 0.6 + 0.4
        assert raised.value.__cause__ is not None

    def test_R69_a_server_that_does_not_answer_costs_one_renewal(
        self, store: DynamoDBStore, wire: Proxy
    ) -> None:
        leases = {won(store.claim(asked(key))) for key in ("one", "two")}
        wire.swallow()
        begun = time.monotonic()
        with pytest.raises(StoreError):
            store.renew(leases, HOUR)
        assert time.monotonic() - begun < 0.6 + 0.4
        wire.heal()
        assert store.renew(leases, HOUR) == leases

    def test_R60_separate_work_whose_completion_is_lost_is_answered_and_its_lease_lapses(
        self, store: DynamoDBStore, wire: Proxy
    ) -> None:
        def work(lease: Any) -> str:
            wire.refuse()
            wire.cut()
            return "done"

        outcome = Engine(store).run(operation(), work)
        wire.heal()

        assert (outcome.result, outcome.stored) == ("done", False)
        with pytest.raises(InProgress):
            Engine(store).run(operation(), work)

    def test_R58_failure_that_cannot_be_written_masks_nothing(
        self, store: DynamoDBStore, wire: Proxy
    ) -> None:
        def work(lease: Any) -> None:
            wire.refuse()
            wire.cut()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            Engine(store).run(operation(), work)

    def test_R69_renewal_that_reaches_nobody_loses_no_lease(
        self, store: DynamoDBStore, wire: Proxy
    ) -> None:
        leases = [won(store.claim(asked(str(number)))) for number in range(3)]
        wire.refuse()
        wire.cut()

        with pytest.raises(StoreError):
            store.renew(leases, HOUR)

        wire.heal()
        assert store.renew(leases, HOUR) == set(leases)


def test_R69_renewal_that_reaches_the_server_for_some_holds_the_others(
    store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [won(store.claim(asked(str(number)))) for number in range(3)]
    store.release(leases[0])
    send = store.table.update

    def update(statement: str, record_id: Any, values: Any, **more: Any) -> Any:
        if record_id == leases[1].record_id:
            raise StoreError
        return send(statement, record_id, values, **more)

    monkeypatch.setattr(store.table, "update", update)

    assert store.renew(leases, HOUR) == set(leases[1:])


def test_R66_completion_whose_claim_was_lost_to_another_is_refused(
    store: DynamoDBStore, wire: Proxy
) -> None:
    lease = won(store.claim(asked(lease=-HOUR)))
    won(store.claim(asked()))
    wire.cut_after(UPDATE)

    with pytest.raises(LeaseLost):
        store.complete(lease, b"late", retention=HOUR)
