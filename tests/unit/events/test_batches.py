"""Batches: record by record, with what failed handed back to the queue."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial

import pytest

import django_idempotency as idempotency
from django_idempotency.attempts import current
from django_idempotency.codecs import JSONCodec, pack
from django_idempotency.conf import InvalidStore, store_for
from django_idempotency.contrib.events import jmespath, kinesis_sequence, process_batch
from django_idempotency.keys import record_id
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import Policy, UnknownField
from tests import version_1
from tests.app.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)

MEMORY = "django_idempotency.stores.memory.MemoryStore"
QUEUE = "arn:aws:sqs:eu-west-1:123456789012:orders"


def record(number, *, source=QUEUE, body=None):
    return {
        "messageId": f"m-{number}",
        "body": body or f"order {number}",
        "eventSourceARN": source,
        "attributes": {"ApproximateReceiveCount": "1"},
    }


def failures(answer):
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def book(message):
    Effect.objects.create(name=message["body"])


def book_or_fail(message):
    book(message)
    if message["messageId"] in ("m-2", "m-4"):
        raise ValueError(message["body"])


def booked():
    return sorted(Effect.objects.values_list("name", flat=True))


def test_R26_redelivered_batch_books_each_record_once():
    batch = [record(n) for n in range(3)]

    answers = [process_batch(batch, book) for _ in range(2)]

    assert answers == [{"batchItemFailures": []}] * 2
    assert booked() == ["order 0", "order 1", "order 2"]


def test_C7_record_that_failed_is_handed_back_without_its_work(caplog):
    batch = [record(n) for n in range(1, 6)]

    with caplog.at_level(logging.ERROR, "django_idempotency"):
        answer = process_batch(batch, book_or_fail)

    assert failures(answer) == ["m-2", "m-4"]
    assert booked() == ["order 1", "order 3", "order 5"]
    assert [line.exc_info[0] for line in caplog.records] == [ValueError, ValueError]


def test_C7_only_what_failed_runs_again():
    batch = [record(n) for n in range(1, 6)]
    process_batch(batch, book_or_fail, operation="book")

    answer = process_batch([batch[1], batch[3]], book, operation="book")

    assert failures(answer) == []
    assert booked() == [f"order {n}" for n in range(1, 6)]


def test_C3_I11_what_another_handler_did_is_not_done():
    """Two consumers of one stream share its name, and so the scope of their keys."""
    process_batch([record(1)], book)

    answer = process_batch([record(1)], book_or_fail)

    assert failures(answer) == ["m-1"]
    assert booked() == ["order 1"]


def test_R47_record_of_version_1_is_not_run_again():
    held = version_1.claimed("call", QUEUE, "m-1", version_1.of_call(None)[0])
    store_for().complete(held, pack(JSONCodec(), None, max_bytes=100), retention=timedelta(days=1))

    assert failures(process_batch([record(1)], book)) == []
    assert booked() == []


def test_C6_record_in_progress_elsewhere_is_handed_back():
    inside = []

    def redelivered(message):
        inside.append(process_batch([message], book))

    process_batch([record(1)], redelivered, transaction="separate")

    assert failures(inside[0]) == ["m-1"]
    assert booked() == []


@pytest.mark.parametrize(
    "batch",
    [
        [record(n, source=f"{QUEUE}.fifo") for n in range(1, 6)],
        [record(n) for n in range(1, 6)],
    ],
    ids=["fifo", "asked for"],
)
def test_ordered_batch_ends_at_the_first_failure(batch):
    in_order = None if batch[0]["eventSourceARN"].endswith(".fifo") else True

    answer = process_batch(batch, book_or_fail, in_order=in_order)

    assert failures(answer) == ["m-2", "m-3", "m-4", "m-5"]
    assert booked() == ["order 1"]


@pytest.mark.parametrize(
    "handler",
    [lambda message: Effect.objects.create(name=message["body"]), lambda message: "x" * 2000],
    ids=["a row", "more than may be kept"],
)
def test_what_the_handler_returns_is_not_kept(handler):
    answer = process_batch([record(1)], handler, max_result_bytes=500)

    assert failures(answer) == []
    assert IdempotencyRecord.objects.get().state == "COMPLETED"


@pytest.mark.parametrize(
    ("mistake", "error", "text"),
    [
        ({"leese": 3}, UnknownField, "Did you mean 'lease'"),
        ({"lease": -1}, ValueError, "lease"),
        ({"store": "nowhere"}, InvalidStore, "no alias 'nowhere'"),
        ({"store": "memory", "transaction": "joined"}, ValueError, "needs a database store"),
        ({"key": "messageId"}, TypeError, "key must be a callable"),
        ({"payload": "body"}, TypeError, "payload must be a callable"),
        ({"scope": None}, TypeError, "scope"),
        ({"operation": None}, TypeError, "operation"),
        ({"handler": "book"}, TypeError, "handler must be a callable"),
        ({"in_ordr": True}, UnknownField, "Did you mean 'in_order'"),
    ],
    ids=str,
)
def test_mistake_of_the_program_is_no_failure_of_records(settings, mistake, error, text):
    settings.IDEMPOTENCY = {"default": {}, "memory": {"BACKEND": MEMORY}}

    with pytest.raises(error, match=text):
        process_batch([record(1)], **{"handler": book, **mistake})
    with pytest.raises(error, match=text):
        process_batch([], **{"handler": book, **mistake})


def test_stream_is_handed_back_by_sequence_number():
    batch = [
        {
            "eventID": f"shard:{n}",
            "kinesis": {"sequenceNumber": str(n)},
            "eventSourceARN": "arn:aws:kinesis:eu-west-1:1:stream/orders",
        }
        for n in range(3)
    ]

    def fail_at_1(message):
        if message["eventID"] == "shard:1":
            raise ValueError

    answer = process_batch(batch, fail_at_1, key=kinesis_sequence)

    assert failures(answer) == ["1", "2"]


def test_R19_two_queues_with_one_id_run_twice():
    process_batch([record(1)], book)
    process_batch([record(1, source=f"{QUEUE}-eu")], book)

    assert booked() == ["order 1", "order 1"]


def test_R37_payload_that_is_compared_refuses_another_body():
    process_batch([record(1)], book, payload=lambda message: message["body"])

    answer = process_batch(
        [record(1, body="forged")], book, payload=lambda message: message["body"]
    )

    assert failures(answer) == ["m-1"]
    assert booked() == ["order 1"]


def test_C1_record_without_a_key_is_handed_back_and_the_rest_is_heard():
    answer = process_batch([record(1), record(2)], book, key=jmespath("attributes.order"))

    assert failures(answer) == ["m-1", "m-2"]
    assert booked() == []


@pytest.mark.parametrize(
    ("given", "scope"),
    [({"scope": "orders"}, "orders"), ({}, f"{__name__}.book")],
    ids=["given", "the handler's name"],
)
def test_R19_record_without_a_source_has_a_scope(given, scope):
    answer = process_batch([{"messageId": "m-1", "body": "order 1"}], book, **given)

    assert failures(answer) == []
    assert IdempotencyRecord.objects.get().pk == record_id("call", scope, "m-1")


@pytest.mark.parametrize(
    "nameless",
    [partial(book), [].append],
    ids=["partial", "of no module"],
)
def test_R19_nameless_handler_of_records_without_a_source_needs_a_scope(nameless):
    anonymous = {"messageId": "m-1", "body": "order 1"}

    with pytest.raises(TypeError, match="say scope="):
        process_batch([record(0), anonymous], nameless)

    assert not IdempotencyRecord.objects.exists()
    assert failures(process_batch([anonymous], nameless, scope="orders")) == []
    assert failures(process_batch([record(0)], nameless)) == []


def test_C7_record_as_boto3_receives_it_is_handed_back_by_its_id():
    batch = [{"MessageId": f"m-{n}", "Body": f"order {n}"} for n in range(1, 4)]

    def work(message):
        book_or_fail({"messageId": message["MessageId"], "body": message["Body"]})

    answer = process_batch(batch, work)

    assert failures(answer) == ["m-2"]
    assert booked() == ["order 1", "order 3"]


@pytest.mark.parametrize(
    "nameless",
    [{}, {"messageId": None}, {"messageId": ""}, {"kinesis": {}}, {"dynamodb": {"Keys": {}}}],
    ids=str,
)
def test_C7_record_that_could_not_be_handed_back_is_an_error_before_the_first_one_runs(nameless):
    with pytest.raises(ValueError, match="Record 2 of this batch has no messageId"):
        process_batch([record(1), {"body": "order 2", **nameless}], book, scope="orders")

    assert booked() == []


async def coroutine(message):
    pytest.fail("ran")


class Coroutine:
    async def __call__(self, message):
        pytest.fail("ran")


@pytest.mark.parametrize(
    "function", [coroutine, partial(coroutine), Coroutine()], ids=["def", "partial", "object"]
)
@pytest.mark.parametrize("name", ["handler", "key", "payload"])
def test_I1_coroutine_function_is_refused_before_the_first_record(name, function):
    with pytest.raises(TypeError, match=f"{name} must not be a coroutine function"):
        process_batch([record(1)], **{"handler": book, name: function})

    assert not IdempotencyRecord.objects.exists()


def test_I1_record_whose_handler_returns_an_awaitable_is_handed_back(caplog):
    answer = process_batch([record(1)], lambda message: coroutine(message))

    assert failures(answer) == ["m-1"]
    assert IdempotencyRecord.objects.get().state == "FAILED"
    assert "nobody awaits" in caplog.text


class LambdaContext:
    """What Lambda hands to a function, as far as time is concerned."""

    def get_remaining_time_in_millis(self):
        return 12_000


@pytest.mark.parametrize(
    "deadline",
    [LambdaContext().get_remaining_time_in_millis, lambda: 12],
    ids=["Lambda's milliseconds", "seconds"],
)
def test_lease_follows_the_deadline(deadline):
    leases = []

    process_batch(
        [record(1)],
        lambda message: leases.append(current()),
        deadline=deadline,
        transaction="separate",
    )

    [lease] = leases
    assert lease.lease_until - lease.claimed_at == timedelta(seconds=12)


def test_lease_with_a_deadline_is_not_renewed():
    """A frozen process must not find its lease renewed beyond its own end."""
    leases = []

    def work(lease):
        leases.append(lease)
        seen = IdempotencyRecord.objects.get().lease_until
        while store_for().get(lease.record_id).live:
            pass
        assert IdempotencyRecord.objects.get().lease_until == seen

    idempotency.run(
        work, key="k", scope="tests", lease=60, deadline=lambda: 0.3, transaction="separate"
    )

    assert len(leases) == 1


def test_deadline_that_is_over_leaves_the_shortest_of_leases():
    outcome = idempotency.run(
        lambda lease: (lease.lease_until - lease.claimed_at).total_seconds(),
        key="k",
        scope="tests",
        deadline=lambda: -5,
        transaction="separate",
    )

    assert outcome.result == 0.001


@pytest.mark.parametrize(
    ("left", "error"),
    [
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (1e12, ValueError),
        (10**400, ValueError),
        (None, TypeError),
        ("5", TypeError),
        (True, TypeError),
    ],
    ids=lambda value: str(value)[:8],
)
def test_deadline_that_gives_no_seconds_of_a_lease_is_told(left, error):
    with pytest.raises(error, match="deadline must return the seconds left"):
        idempotency.run(lambda lease: 1, key="k", scope="tests", deadline=lambda: left)


def test_deadline_of_no_use_is_no_failure_of_records():
    with pytest.raises(ValueError, match="seconds left"):
        process_batch([record(1)], book, deadline=lambda: float("nan"))


@pytest.mark.parametrize("left", [float("-inf"), -(10**400)], ids=["-inf", "huge"])
def test_deadline_that_was_over_long_ago_leaves_the_shortest_of_leases(left):
    assert Policy(deadline=lambda: left).attempt_lease() == timedelta(milliseconds=1)


def test_deadline_must_be_callable():
    with pytest.raises(ValueError, match="deadline must be a callable"):
        idempotency.run(lambda lease: 1, key="k", scope="tests", deadline=12)
