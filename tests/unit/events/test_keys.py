"""The keys of messages: what is found, what is refused, and that two of them never meet."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import django_idempotency as idempotency
from django_idempotency.contrib import events

SQS = {"messageId": "19dd0b57-b21e-4ac1-bd88-01bbb068cb78", "body": "{}", "receiptHandle": "r1"}
KINESIS = {
    "eventID": "shardId-000000000006:49590338271490256608559692538361571095921575989136588898",
    "kinesis": {"sequenceNumber": "49590338271490256608559692538361571095921575989136588898"},
}


class Confluent:
    """A message as confluent-kafka has it: what it says are methods."""

    def topic(self):
        return "orders"

    def partition(self):
        return 0

    def offset(self):
        return 0


FOUND = {
    "SQS in Lambda": (events.sqs_message_id, SQS, SQS["messageId"]),
    "SQS by boto3": (events.sqs_message_id, {"MessageId": "m-1"}, "m-1"),
    "EventBridge": (events.eventbridge_id, {"id": "cdc73f9d", "detail": {}}, "cdc73f9d"),
    "Kinesis": (events.kinesis_sequence, KINESIS, KINESIS["eventID"]),
    "Kinesis without id": (
        events.kinesis_sequence,
        {"kinesis": KINESIS["kinesis"]},
        KINESIS["kinesis"]["sequenceNumber"],
    ),
    "kafka-python": (
        events.kafka_offset,
        SimpleNamespace(topic="orders", partition=3, offset=0),
        "orders-3-0",
    ),
    "confluent-kafka": (events.kafka_offset, Confluent(), "orders-0-0"),
    "Kafka in Lambda": (
        events.kafka_offset,
        {"topic": "orders", "partition": 1, "offset": 15},
        "orders-1-15",
    ),
    "pika": (events.amqp_message_id, SimpleNamespace(message_id="a-1"), "a-1"),
    "kombu": (
        events.amqp_message_id,
        SimpleNamespace(properties={"message_id": "a-2"}),
        "a-2",
    ),
    "JMESPath": (events.jmespath("detail.id"), {"detail": {"id": 7}}, "7"),
    "JMESPath, zero": (events.jmespath("id"), {"id": 0}, "0"),
    "composite": (
        events.composite("tenant", "order.id"),
        {"tenant": "acme", "order": {"id": 12}},
        "acme#12",
    ),
}


@pytest.mark.parametrize(("key", "message", "expected"), FOUND.values(), ids=FOUND.keys())
def test_C1_key_is_found_in_the_first_argument(key, message, expected):
    assert key(message) == key(event=message, context=object()) == expected


REFUSED = {
    "no id": (events.sqs_message_id, {"body": "{}"}),
    "null": (events.eventbridge_id, {"id": None}),
    "empty": (events.eventbridge_id, {"id": ""}),
    "a list": (events.jmespath("ids"), {"ids": ["a"]}),
    "an object": (events.jmespath("detail"), {"detail": {"id": 1}}),
    "true": (events.jmespath("id"), {"id": True}),
    "a fraction": (events.jmespath("id"), {"id": 1.5}),
    "no offset": (events.kafka_offset, {"topic": "orders", "partition": 1}),
    "neither id nor number": (events.kinesis_sequence, {"data": "x"}),
    "no message id": (events.amqp_message_id, SimpleNamespace(properties={})),
    "nothing to hash": (events.payload_hash("order", "amount"), {"foo": 1}),
    "half of what is hashed": (events.payload_hash("order", "amount"), {"order": 1}),
    "null to hash": (events.payload_hash("order"), {"order": None}),
    "half of a composite": (events.composite("tenant", "id"), {"tenant": "acme"}),
}


@pytest.mark.parametrize(("key", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_C1_message_without_its_key_is_refused(key, message):
    with pytest.raises(idempotency.InvalidKey, match=r"finds no string or number|finds nothing at"):
        key(message)


def test_C1_composite_escapes_its_own_sign_and_no_letters():
    key = events.composite("a", "b")

    assert key({"a": "x#y%", "b": "日本 é\n"}) == "x%23y%25#日本 é%0A"


parts = st.text(st.sampled_from("ab#%2350日é\x00\ud800\udcff"), min_size=1, max_size=5)


@given(st.tuples(parts, parts), st.tuples(parts, parts))
def test_C1_any_two_composites_differ(one, other):
    key = events.composite("a", "b")
    keys = [key(dict(zip("ab", values, strict=True))) for values in (one, other)]

    assert (keys[0] == keys[1]) == (one == other)


def test_C1_hash_of_a_payload_does_not_depend_on_the_order_of_its_members():
    key = events.payload_hash()

    assert key({"a": 1, "b": [2]}) == key({"b": [2], "a": 1})
    assert key({"a": 1}) != key({"a": "1"})


def test_C1_hash_of_parts_leaves_the_rest_out():
    key = events.payload_hash("order", "amount")

    assert key({"order": 1, "amount": 2, "sent": 3}) == key({"order": 1, "amount": 2, "sent": 4})
    assert key({"order": 1, "amount": 2}) != key({"order": 2, "amount": 1})


def test_expression_that_cannot_be_parsed_is_refused_at_once():
    with pytest.raises(ValueError, match="detail"):
        events.jmespath("detail.[")


def test_composite_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        events.composite()


def test_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jmespath", None)

    with pytest.raises(ImportError, match=r"django-idempotency\[events\]"):
        events.jmespath("id")


@pytest.mark.parametrize("payload", [None, lambda message: message["body"]])
def test_C1_C3_redelivered_message_is_the_same_although_its_receipt_differs(memory, payload):
    runs = []
    options = {} if payload is None else {"payload": payload}

    @idempotency.idempotent_function(key=events.sqs_message_id, scope="orders-queue", **options)
    def handle(message, *context):
        runs.append(message["body"])

    handle(SQS, object()) if payload is None else handle(SQS)
    handle({**SQS, "receiptHandle": "r2"})

    assert runs == ["{}"]
    if payload is not None:
        with pytest.raises(idempotency.FingerprintMismatch):
            handle({**SQS, "body": "another"})


def test_key_shows_what_it_is():
    assert repr(events.composite("a", "b")) == "<EventKey composite('a', 'b')>"
