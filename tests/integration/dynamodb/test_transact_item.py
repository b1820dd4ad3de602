"""`transact_item`: business items and the record in one TransactWriteItems, or none of them."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError
from django.db import transaction

import django_idempotency as idempotency
from django_idempotency.conf import store_for
from django_idempotency.exceptions import ResultUnavailable, TransactionOpen
from django_idempotency.keys import new_token, record_id
from django_idempotency.records import ClaimRequest, Lease, Record, State
from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.integration.dynamodb.claims import won
from tests.integration.dynamodb.conftest import Options
from tests.integration.dynamodb.wire import Wire

BACKEND = "django_idempotency.stores.dynamodb.DynamoDBStore"
CALL: dict[str, Any] = {"key": "k", "scope": "s"}
ID = record_id("call", "s", "k")


class Payments:
    """A business table beside the records, on the same server."""

    def __init__(self, store: DynamoDBStore) -> None:
        self.name = f"payments-{uuid4()}"
        self.client = store.table.client.native
        self.client.create_table(
            TableName=self.name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def put(self, name: str, **condition: str) -> dict[str, Any]:
        return {"Put": {"TableName": self.name, "Item": {"id": {"S": name}}, **condition}}

    def pay(self, lease: Lease, name: str = "payment", result: Any = "paid", **more: str) -> Any:
        """Write a payment and the record together, and return the result."""
        self.client.transact_write_items(
            TransactItems=[self.put(name, **more), lease.transact_item(result)]
        )
        return result

    @property
    def names(self) -> list[str]:
        return [item["id"]["S"] for item in self.client.scan(TableName=self.name)["Items"]]


@pytest.fixture
def store(settings: Any, options: Options, storage: Any) -> DynamoDBStore:
    given = options(overflow_storage="overflow", clock_skew=0)
    alias = {"BACKEND": BACKEND, "OPTIONS": given, "MAX_RESULT_BYTES": 2**22, "RENEW": False}
    settings.IDEMPOTENCY = {"default": alias}
    store = store_for("default")
    assert isinstance(store, DynamoDBStore)
    return store


@pytest.fixture
def payments(store: DynamoDBStore) -> Payments:
    return Payments(store)


def the_record(store: DynamoDBStore) -> Record:
    record = store.get(ID)
    assert record is not None
    return record


def test_I5_payment_and_record_are_written_together(
    store: DynamoDBStore, payments: Payments
) -> None:
    seen: list[State] = []

    def work(lease: Lease) -> Any:
        result = payments.pay(lease)
        seen.append(the_record(store).state)
        return result

    outcome = idempotency.run(work, **CALL)

    assert seen == [State.COMPLETED]
    assert payments.names == ["payment"]
    assert (outcome.result, outcome.replayed) == ("paid", False)
    assert outcome.expires_at == the_record(store).expires_at


def test_R25_replay_gives_its_result(store: DynamoDBStore, payments: Payments) -> None:
    idempotency.run(payments.pay, **CALL)

    again = idempotency.run(lambda lease: pytest.fail("ran"), **CALL)

    assert (again.result, again.replayed) == ("paid", True)


def test_R59_crash_after_the_transaction_loses_nothing(
    store: DynamoDBStore, payments: Payments
) -> None:
    def dies(lease: Lease) -> Any:
        payments.pay(lease)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        idempotency.run(dies, **CALL)

    again = idempotency.run(lambda lease: pytest.fail("ran"), **CALL)
    assert (again.result, again.replayed) == ("paid", True)


def test_completion_at_the_end_is_one_call_that_changes_nothing(
    store: DynamoDBStore, payments: Payments
) -> None:
    wire = Wire(store)

    idempotency.run(payments.pay, **CALL)

    assert wire.taken() == ["UpdateItem", "TransactWriteItems", "UpdateItem"]


@pytest.mark.parametrize("committed", [{"id": 1}, "x" * 2**20], ids=["in the item", "overflow"])
@pytest.mark.parametrize("caller", ["run", "arun"])
def test_I4_work_that_returns_another_result_answers_with_what_it_committed(
    store: DynamoDBStore, payments: Payments, caller: str, committed: Any, caplog: Any
) -> None:
    def work(lease: Lease) -> str:
        payments.pay(lease, result=committed)
        return "other"

    async def awork(lease: Lease) -> str:
        return work(lease)

    if caller == "run":
        first = idempotency.run(work, **CALL)
    else:
        first = asyncio.run(idempotency.arun(awork, **CALL))

    again = idempotency.run(lambda lease: pytest.fail("ran"), **CALL)
    assert first.result == again.result == committed
    assert first.expires_at == again.expires_at
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]


def test_I4_completion_that_is_sent_again_is_no_other_result(
    store: DynamoDBStore,
) -> None:
    lease = won(store.claim(ClaimRequest(ID, "s", "k")))
    expires_at = store.complete(lease, b"done", retention=timedelta(hours=1))

    assert store.complete(lease, b"done", retention=timedelta(hours=1)) == expires_at

    assert lease.completed_before is None


@pytest.mark.parametrize("successor", ["in progress", "completed"])
def test_I7_transaction_of_a_superseded_owner_is_refused_whole(
    store: DynamoDBStore, payments: Payments, successor: str
) -> None:
    def stalls(lease: Lease) -> Any:
        another = replace(lease.request, token=new_token(), lease=timedelta(minutes=1))
        taken = won(store.claim(another))
        if successor == "completed":
            store.complete(taken, b"theirs", retention=timedelta(hours=1))
        return payments.pay(lease)

    with pytest.raises(ClientError) as raised:
        idempotency.run(stalls, lease=0.001, **CALL)

    assert raised.value.response["Error"]["Code"] == "TransactionCanceledException"
    assert payments.names == []
    expected = State.COMPLETED if successor == "completed" else State.IN_PROGRESS
    assert the_record(store).state is expected


def test_R58_transaction_that_the_business_refuses_leaves_the_key_free(
    store: DynamoDBStore, payments: Payments
) -> None:
    payments.client.put_item(TableName=payments.name, Item={"id": {"S": "taken"}})
    new = {"ConditionExpression": "attribute_not_exists(id)"}

    with pytest.raises(ClientError):
        idempotency.run(lambda lease: payments.pay(lease, "taken", **new), **CALL)

    assert the_record(store).state is State.FAILED
    assert idempotency.run(lambda lease: payments.pay(lease, "free", **new), **CALL).stored


def test_R62_large_result_goes_through_the_storage(
    store: DynamoDBStore, payments: Payments
) -> None:
    result = secrets.token_hex(2**20)

    idempotency.run(lambda lease: payments.pay(lease, result=result), **CALL)

    assert idempotency.run(lambda lease: pytest.fail("ran"), **CALL).result == result


@pytest.mark.parametrize("down", ["throughout", "at the item", "at the end"])
@pytest.mark.parametrize("caller", ["run", "arun"])
def test_R62_storage_that_is_down_never_means_a_second_payment(
    store: DynamoDBStore, payments: Payments, storage: Any, caller: str, down: str
) -> None:
    result = secrets.token_hex(2**20)
    error = OSError("the storage does not answer")
    broken = mock.patch.multiple(
        type(storage), _save=mock.Mock(side_effect=error), _open=mock.Mock(side_effect=error)
    )

    def work(lease: Lease) -> Any:
        if down == "at the item":
            with broken:
                return payments.pay(lease, result=result)
        payments.pay(lease, result=result)
        if down == "at the end":
            stack.enter_context(broken)
        return result

    async def awork(lease: Lease) -> Any:
        return work(lease)

    with ExitStack() as stack:
        if down == "throughout":
            stack.enter_context(broken)
        if caller == "run":
            first = idempotency.run(work, **CALL)
        else:
            first = asyncio.run(idempotency.arun(awork, **CALL))

    assert (first.result, first.replayed, first.stored) == (result, False, False)
    assert first.expires_at is not None
    if down == "at the end":
        assert idempotency.run(lambda lease: pytest.fail("ran"), **CALL).result == result
    else:
        with pytest.raises(ResultUnavailable):
            idempotency.run(lambda lease: pytest.fail("ran"), **CALL)
    assert payments.names == ["payment"]


def test_R62_result_that_is_too_large_for_the_policy_is_left_out_of_the_item(
    store: DynamoDBStore, payments: Payments
) -> None:
    result = "x" * 2**22

    first = idempotency.run(lambda lease: payments.pay(lease, result=result), **CALL)

    assert (first.result, first.stored) == (result, False)
    with pytest.raises(ResultUnavailable):
        idempotency.run(lambda lease: pytest.fail("ran"), **CALL)


@pytest.mark.django_db(transaction=True)
def test_I13_not_inside_a_transaction_that_is_open(
    store: DynamoDBStore, payments: Payments
) -> None:
    with pytest.raises(TransactionOpen), transaction.atomic():
        idempotency.run(payments.pay, **CALL)

    assert payments.names == []
