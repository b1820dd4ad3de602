"""`transact_item`: business items and the record in one TransactWriteItems, or none of them."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from unittest import mock
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError
from django.db import transaction

import django_idempotency as idempotency
from django_idempotency import signals
from django_idempotency.conf import store_for
from django_idempotency.exceptions import ResultUnavailable, TransactionOpen
from django_idempotency.keys import new_token, record_id
from django_idempotency.records import State
from django_idempotency.stores.memory import MemoryStore
from tests.claims import HOUR, asked, won
from tests.integration.dynamodb.conftest import BACKEND

CALL = {"key": "k", "scope": "s"}
ID = record_id("call", "s", "k")
LARGE = secrets.token_hex(2**20)


class Payments:
    """A business table beside the records, on the same server."""

    def __init__(self, store):
        self.name = f"payments-{uuid4()}"
        self.client = store.table.client.ready()
        self.client.create_table(
            TableName=self.name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def pay(self, lease, name="payment", result="paid", **condition):
        """Write a payment and the record together, and return the result."""
        put = {"TableName": self.name, "Item": {"id": {"S": name}}, **condition}
        items = [{"Put": put}, lease.transact_item(result)]
        self.client.transact_write_items(TransactItems=items)
        return result

    @property
    def names(self):
        return [item["id"]["S"] for item in self.client.scan(TableName=self.name)["Items"]]


@pytest.fixture
def keys():
    """Those under which results are encrypted."""
    return ()


@pytest.fixture
def store(settings, options, storage, keys):
    given = options(overflow_storage="overflow", clock_skew=0)
    alias = {"BACKEND": BACKEND, "OPTIONS": given, "MAX_RESULT_BYTES": 2**22, "RENEW": False}
    alias["ENCRYPTION_KEYS"] = keys
    settings.IDEMPOTENCY = {"default": alias}
    return store_for("default")


@pytest.fixture
def payments(store):
    return Payments(store)


def run(work, caller="run"):
    if caller == "run":
        return idempotency.run(work, **CALL)

    async def awork(lease):
        return work(lease)

    return asyncio.run(idempotency.arun(awork, **CALL))


def again():
    return idempotency.run(lambda lease: pytest.fail("ran"), **CALL)


@pytest.mark.parametrize(
    ("result", "keys"),
    [("paid", ()), (LARGE, ()), ("paid", [bytes(32)]), (LARGE, [bytes(32)])],
    ids=["in the item", "overflow", "encrypted", "encrypted overflow"],
)
def test_I5_R25_payment_and_record_are_written_together_and_replayed(
    store, payments, wire, result, caplog
):
    def work(lease):
        payments.pay(lease, result=result)
        assert store.get(ID).state is State.COMPLETED
        return result

    outcome = run(work)

    # The completion at the end is one call, which changes nothing.
    calls = [name for name in wire.taken() if name != "GetItem"]
    assert calls == ["UpdateItem", "TransactWriteItems", "UpdateItem"]
    assert payments.names == ["payment"]
    assert (outcome.result, outcome.replayed) == (result, False)
    assert outcome.expires_at == store.get(ID).expires_at
    assert (again().result, again().replayed) == (result, True)
    assert not caplog.records  # of another result than the committed one


def test_I4_work_that_returns_another_result_answers_with_what_it_committed(payments, caplog):
    committed = LARGE

    def work(lease):
        payments.pay(lease, result=committed)
        return "other"

    told = []

    def receive(outcome, **facts):
        told.append(outcome)

    for signal in signals.TERMINAL.values():
        signal.connect(receive)
    try:
        first = run(work, "arun")
    finally:
        for signal in signals.TERMINAL.values():
            signal.disconnect(receive)

    assert told == ["completed"]
    assert first.result == again().result == committed
    assert first.expires_at == again().expires_at
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]


#: Which the codec refuses with a TypeError, with a ValueError, and by its length.
UNSTORABLE = [object(), 10**5000, LARGE * 4]


@pytest.mark.parametrize("result", UNSTORABLE, ids=["object", "digits", "long"])
def test_R62_result_that_cannot_be_stored_is_paid_for_and_missing(payments, result):
    outcome = run(lambda lease: payments.pay(lease, result=result))

    assert (outcome.result is result, outcome.stored) == (True, False)
    assert payments.names == ["payment"]
    with pytest.raises(ResultUnavailable):
        again()


def test_I4_completion_that_is_sent_again_is_no_other_result(store):
    lease = won(store.claim(asked()))
    expires_at = store.complete(lease, b"done", retention=HOUR)
    assert store.complete(lease, b"done", retention=HOUR) == expires_at
    assert lease.completed_before is None


def test_a_lease_that_no_attempt_holds_and_one_of_another_store_have_no_item(store):
    for other, told in ((store, "No attempt holds"), (MemoryStore(), "Only a lease of a DynamoDB")):
        with pytest.raises(RuntimeError, match=told):
            won(other.claim(asked())).transact_item("paid")


def test_I7_transaction_of_a_superseded_owner_is_refused_whole(store, payments):
    def stalls(lease):
        another = replace(lease.request, token=new_token(), lease=timedelta(minutes=1))
        won(store.claim(another))
        return payments.pay(lease)

    with pytest.raises(ClientError) as raised:
        idempotency.run(stalls, lease=0.001, **CALL)

    assert raised.value.response["Error"]["Code"] == "TransactionCanceledException"
    assert payments.names == []
    assert store.get(ID).state is State.IN_PROGRESS


@pytest.mark.parametrize(("caller", "down"), [("run", "at the end"), ("arun", "throughout")])
def test_R62_storage_that_is_down_never_means_a_second_payment(payments, storage, caller, down):
    error = OSError("the storage does not answer")
    broken = mock.patch.multiple(
        type(storage), _save=mock.Mock(side_effect=error), _open=mock.Mock(side_effect=error)
    )

    def work(lease):
        payments.pay(lease, result=LARGE)
        if down == "at the end":
            stack.enter_context(broken)
        return LARGE

    with ExitStack() as stack:
        if down == "throughout":
            stack.enter_context(broken)
        first = run(work, caller)

    assert (first.result, first.replayed, first.stored) == (LARGE, False, False)
    assert first.expires_at is not None
    if down == "at the end":
        assert again().result == LARGE
    else:
        with pytest.raises(ResultUnavailable):
            again()
    assert payments.names == ["payment"]


@pytest.mark.django_db(transaction=True)
def test_I13_not_inside_a_transaction_that_is_open(payments):
    with pytest.raises(TransactionOpen), transaction.atomic():
        run(payments.pay)
    assert payments.names == []
