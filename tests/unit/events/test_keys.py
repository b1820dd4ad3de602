"""The keys of messages: what is found, what is refused, and that two of them never meet."""

from __future__ import annotations

import sys
from itertools import count, product
from types import SimpleNamespace as Namespace

import django
import pytest

from django_idempotency import FingerprintMismatch, InvalidKey, idempotent_function
from django_idempotency.contrib import events

SQS = {"messageId": "19dd0b57-b21e-4ac1-bd88-01bbb068cb78", "body": "{}", "receiptHandle": "r1"}
KINESIS = {"eventID": "shardId-06:4959", "kinesis": {"sequenceNumber": "4959"}}


def aggregated(number):
    """A record as aws_kinesis_agg takes it out of those that the KPL has aggregated."""
    part = {"aggregated": True, "subSequenceNumber": number}
    return {**KINESIS, "kinesis": {**KINESIS["kinesis"], **part}}


class Confluent:
    """A message as confluent-kafka has it: what it says are methods."""

    def topic(self):
        return "orders"

    def partition(self):
        return 0

    def offset(self):
        return 0


FOUND = [
    (events.sqs_message_id, SQS, SQS["messageId"]),
    (events.sqs_message_id, {"MessageId": "m-1"}, "m-1"),  # by boto3
    (events.eventbridge_id, {"id": "cdc73f9d", "detail": {}}, "cdc73f9d"),
    (events.kinesis_sequence, KINESIS, "shardId-06:4959"),
    (events.kinesis_sequence, {"kinesis": KINESIS["kinesis"]}, "4959"),
    (events.kinesis_sequence, aggregated(0), "shardId-06:4959"),
    (events.kinesis_sequence, aggregated(2), "shardId-06:4959.2"),
    (events.kinesis_sequence, {"kinesis": aggregated(2)["kinesis"]}, "4959.2"),
    (events.kafka_offset, Namespace(topic="orders", partition=3, offset=0), "orders-3-0"),
    (events.kafka_offset, Confluent(), "orders-0-0"),
    (events.kafka_offset, {"topic": "orders", "partition": 1, "offset": 15}, "orders-1-15"),
    (events.amqp_message_id, Namespace(message_id="a-1"), "a-1"),  # pika
    (events.amqp_message_id, Namespace(properties={"message_id": "a-2"}), "a-2"),  # kombu
    (events.jmespath("detail.id"), {"detail": {"id": 7}}, "7"),
    (events.jmespath("id"), {"id": 0}, "0"),
    (events.composite("tenant", "order.id"), {"tenant": "acme", "order": {"id": 12}}, "acme#12"),
    # It escapes its own sign and no letters.
    (events.composite("a", "b"), {"a": "x#y%", "b": "日本 é\n"}, "x%23y%25#日本 é%0A"),
]
REFUSED = [
    (events.sqs_message_id, {"body": "{}"}),
    *((events.eventbridge_id, {"id": value}) for value in (None, "")),
    *((events.jmespath("id"), {"id": value}) for value in (["a"], {"id": 1}, True, 1.5)),
    (events.kafka_offset, {"topic": "orders", "partition": 1}),
    (events.kafka_offset, {"topic": "orders", "partition": 1, "offset": None}),  # not sent yet
    (events.kafka_offset, {"topic": "orders", "partition": 1, "offset": -1001}),  # librdkafka's
    (events.kinesis_sequence, {"data": "x"}),
    (events.amqp_message_id, Namespace(properties={})),
    (events.payload_hash("order", "amount"), {"order": 1}),
    (events.composite("tenant", "id"), {"tenant": "acme"}),
]


def test_C1_key_is_found_in_the_first_argument_or_the_message_is_refused():
    for key, message, expected in FOUND:
        assert key(message) == key(event=message, context=object()) == expected
    for key, message in REFUSED:
        with pytest.raises(InvalidKey, match=r"finds no string or number|finds nothing at"):
            key(message)


both = events.composite("a", "b")


def test_C1_any_two_composites_differ():
    parts = [*"a#%23é", *map("".join, product("a#%23", repeat=2)), "%23", "%25", "\x00", "\ud800"]
    keys = {both({"a": one, "b": other}) for one in parts for other in parts}
    assert len(keys) == len(parts) ** 2


def test_C1_hash_of_a_payload_or_of_parts_of_it():
    """It does not depend on the order of members, and leaves out what is not named."""
    key = events.payload_hash()
    assert key({"a": 1, "b": [2]}) == key({"b": [2], "a": 1})
    assert key({"a": 1}) != key({"a": "1"})
    key = events.payload_hash("order", "amount")
    assert key({"order": 1, "amount": 2, "sent": 3}) == key({"order": 1, "amount": 2, "sent": 4})
    assert key({"order": 1, "amount": 2}) != key({"order": 2, "amount": 1})


def test_keys_that_cannot_be_are_refused_at_once(monkeypatch):
    assert repr(both) == "<EventKey composite('a', 'b')>"
    with pytest.raises(ValueError, match="detail"):
        events.jmespath("detail.[")
    with pytest.raises(ValueError, match="at least one"):
        events.composite()
    monkeypatch.setitem(sys.modules, "jmespath", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[events\]'"):
        events.jmespath("id")


@pytest.mark.usefixtures("idempotency_store")
def test_C1_C3_redelivered_message_is_the_same_although_its_receipt_differs():
    runs = []

    def handle(message, *context):
        runs.append(message["body"])

    alone = idempotent_function(key=events.sqs_message_id, scope="orders")(handle)
    by_body = idempotent_function(
        key=events.sqs_message_id, scope="bodies", payload=lambda message: message["body"]
    )(handle)

    alone(SQS, object())
    by_body(SQS)
    for again in (alone, by_body):
        again({**SQS, "receiptHandle": "r2"})
    assert runs == ["{}", "{}"]
    with pytest.raises(FingerprintMismatch):
        by_body({**SQS, "body": "another"})


# Below the `@task` of Django 6.

shipments = count()

if django.VERSION >= (6, 0):  # before it there is nothing to test
    from django.tasks import TaskContext, task

    @task(takes_context=True)
    @idempotent_function(key=lambda order_id: order_id, scope="tests.ship")
    def ship(context: TaskContext, order_id: str) -> int:
        assert context.attempt == 1
        return next(shipments)

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.usefixtures("idempotency_store")
    def test_C3_C4_task_that_is_enqueued_twice_runs_once_and_its_context_is_not_compared():
        first, again = ship.enqueue("order-1"), ship.enqueue("order-1")
        other = ship.enqueue("order-2")
        assert (first.status, first.return_value) == (again.status, again.return_value)
        assert first.return_value != other.return_value
