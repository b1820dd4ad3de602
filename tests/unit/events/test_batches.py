"""Batches: record by record, with what failed handed back to the queue."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial

import pytest

import django_idempotency as idempotency
from django_idempotency.conf import InvalidStore, store_for
from django_idempotency.context import current
from django_idempotency.contrib.events import jmespath, kinesis_sequence, process_batch
from django_idempotency.keys import record_id
from django_idempotency.policy import Policy, UnknownField

pytestmark = pytest.mark.usefixtures("idempotency_store")

MEMORY = "django_idempotency.stores.memory.MemoryStore"
QUEUE = "arn:aws:sqs:eu-west-1:123456789012:orders"
NAMELESS = {"messageId": "m-1", "body": "order 1"}


def record(number, *, source=QUEUE, body=None):
    return {
        "messageId": f"m-{number}",
        "body": body or f"order {number}",
        "eventSourceARN": source,
    }


def failures(answer):
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


class Booked(list):
    """What the handlers below have booked."""

    failing = ("m-2", "m-4")

    def book(self, message):
        self.append(message["body"])

    def book_or_fail(self, message):
        if message["messageId"] in self.failing:
            raise ValueError(message["body"])
        self.book(message)


@pytest.fixture
def books():
    return Booked()


def test_R19_R26_redelivered_batch_books_each_record_once_per_queue(books):
    batch = [*(record(n) for n in range(3)), record(1, source=f"{QUEUE}-eu")]
    answers = [process_batch(batch, books.book) for _ in range(2)]
    assert answers == [{"batchItemFailures": []}] * 2
    assert books == ["order 0", "order 1", "order 2", "order 1"]


def test_C7_record_that_failed_is_handed_back_without_its_work_and_runs_again(books, caplog):
    batch = [record(n) for n in range(1, 6)]

    with caplog.at_level(logging.ERROR, "django_idempotency"):
        answer = process_batch(batch, books.book_or_fail)
    assert failures(answer) == ["m-2", "m-4"]
    assert books == ["order 1", "order 3", "order 5"]
    assert [line.exc_info[0] for line in caplog.records] == [ValueError, ValueError]

    books.failing = ()
    assert failures(process_batch(batch, books.book_or_fail)) == []
    assert sorted(books) == [f"order {n}" for n in range(1, 6)]


def test_C3_I11_what_another_handler_did_is_not_done(books):
    """Two consumers of one stream share its name, and so the scope of their keys."""
    process_batch([record(1)], books.book)
    assert failures(process_batch([record(1)], books.book_or_fail)) == ["m-1"]
    assert books == ["order 1"]


STREAM = [
    {"body": "x", "messageId": f"m-{n}", "eventID": f"shard:{n}", "kinesis": {"sequenceNumber": n}}
    for n in range(1, 6)
]


@pytest.mark.parametrize(
    ("batch", "options", "first"),
    [
        ([record(n, source=f"{QUEUE}.fifo") for n in range(1, 6)], {}, "m-"),
        ([record(n) for n in range(1, 6)], {"in_order": True}, "m-"),
        (STREAM, {"key": kinesis_sequence, "scope": "orders"}, ""),
    ],
    ids=["fifo", "asked for", "a stream, by sequence number"],
)
def test_ordered_batch_ends_at_the_first_failure(books, batch, options, first):
    answer = process_batch(batch, books.book_or_fail, **options)

    assert failures(answer) == [f"{first}{n}" for n in range(2, 6)]
    assert len(books) == 1


@pytest.mark.parametrize(
    ("batch", "key", "failed"),
    [
        ([record(n, source=f"{QUEUE}.fifo") for n in range(1, 6)], None, ["m-2", "m-4"]),
        (STREAM, kinesis_sequence, ["2", "4"]),
    ],
    ids=["fifo", "a stream"],
)
def test_batch_that_is_not_to_be_in_order_goes_on_after_a_failure(books, batch, key, failed):
    options = {"key": key} if key else {}
    answer = process_batch(batch, books.book_or_fail, in_order=False, **options)

    assert failures(answer) == failed
    assert len(books) == 3


def test_what_the_handler_returns_is_not_kept(idempotency_store):
    for number, result in enumerate((object(), "x" * 2000)):
        answer = process_batch([record(number)], lambda message: result, max_result_bytes=500)  # noqa: B023
        assert failures(answer) == []
    states = [one.state for one in idempotency_store._records.values()]
    assert states == ["COMPLETED"] * 2


async def coroutine(message):
    pytest.fail("ran")


MISTAKES = [
    ({"leese": 3}, UnknownField, "Did you mean 'lease'"),
    ({"lease": -1}, ValueError, "lease"),
    ({"store": "nowhere"}, InvalidStore, "no alias 'nowhere'"),
    ({"transaction": "joined"}, ValueError, "needs a database store"),
    ({"key": "messageId"}, TypeError, "key must be a callable"),
    ({"scope": None}, TypeError, "scope"),
    ({"operation": None}, TypeError, "operation"),
    ({"in_ordr": True}, UnknownField, "Did you mean 'in_order'"),
    ({"deadline": lambda: float("nan")}, ValueError, "seconds left"),
    ({"handler": coroutine}, TypeError, "handler must not be a coroutine function"),
    ({"payload": coroutine}, TypeError, "payload must not be a coroutine function"),
]


def test_I1_mistake_of_the_program_is_no_failure_of_records(books, idempotency_store):
    for mistake, error, text in MISTAKES:
        for batch in ([], [record(1)]):
            with pytest.raises(error, match=text):
                process_batch(batch, **{"handler": books.book, **mistake})
    assert not idempotency_store._records


def test_R37_payload_that_is_compared_refuses_another_body(books):
    batch = [record(1), record(1, body="forged")]
    answer = process_batch(batch, books.book, payload=lambda message: message["body"])
    assert failures(answer) == ["m-1"]
    assert books == ["order 1"]


def test_C1_record_without_a_key_is_handed_back_and_the_rest_is_heard(books):
    batch = [record(1), {**record(2), "attributes": {"order": 7}}]
    answer = process_batch(batch, books.book, key=jmespath("attributes.order"))
    assert failures(answer) == ["m-1"]
    assert books == ["order 2"]


def test_R19_record_without_a_source_has_a_scope(books, idempotency_store):
    """The handler's name, unless it has none and no scope is given."""
    for scope, given in (("orders", {"scope": "orders"}), (f"{__name__}.Booked.book", {})):
        assert failures(process_batch([NAMELESS], books.book, **given)) == []
        assert idempotency_store.get(record_id("call", scope, "m-1")) is not None
    idempotency_store._records.clear()
    nameless = partial(Booked.book, Booked())
    with pytest.raises(TypeError, match="give scope="):
        process_batch([record(0), NAMELESS], nameless)
    assert not idempotency_store._records
    assert failures(process_batch([NAMELESS], nameless, scope="orders")) == []
    assert failures(process_batch([record(0)], nameless)) == []


def test_C7_record_as_boto3_receives_it_is_handed_back_by_its_id():
    def work(message):
        assert message["MessageId"] != "m-2"

    batch = [{"MessageId": f"m-{n}", "Body": f"order {n}"} for n in range(1, 4)]
    assert failures(process_batch(batch, work)) == ["m-2"]


def test_C7_record_that_could_not_be_handed_back_is_an_error_before_the_first_one_runs(books):
    ids = [{}, {"messageId": None}, {"messageId": ""}, {"kinesis": {}}, {"dynamodb": {"Keys": {}}}]
    for nameless in ids:
        with pytest.raises(ValueError, match="Record 2 of this batch has no messageId"):
            process_batch([record(1), {"body": "order 2", **nameless}], books.book, scope="orders")
    assert books == []


def test_I1_record_whose_handler_returns_an_awaitable_is_handed_back(idempotency_store, caplog):
    answer = process_batch([record(1)], lambda message: coroutine(message))
    assert failures(answer) == ["m-1"]
    assert [one.state for one in idempotency_store._records.values()] == ["FAILED"]
    assert "neither awaited" in caplog.text


# The deadline of a policy, which a function in a cloud has.


def test_lease_follows_the_deadline():
    leases = []
    for number, left in enumerate((12, -5)):
        process_batch([record(number)], lambda _: leases.append(current()), deadline=lambda: left)  # noqa: B023
    durations = [(lease.lease_until - lease.claimed_at).total_seconds() for lease in leases]
    assert durations == [12, 0.001]  # the shortest of leases
    for left in (float("-inf"), -(10**400)):
        assert Policy(deadline=lambda: left).attempt_lease() == timedelta(milliseconds=1)  # noqa: B023


def test_lease_with_a_deadline_is_not_renewed(settings):
    """A frozen process must not find its lease renewed beyond its own end."""
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY}}

    def work(lease):
        seen = store_for().get(lease.record_id).lease_until
        while (record := store_for().get(lease.record_id)).live:
            pass
        return record.lease_until == seen

    asked = {"key": "k", "scope": "tests", "lease": 60, "deadline": lambda: 0.05}
    assert idempotency.run(work, **asked).result is True


def test_deadline_that_gives_no_seconds_of_a_lease_is_told():
    numbers = [float("nan"), float("inf"), 1e12, 10**400]
    others = [(None, TypeError), ("5", TypeError), (True, TypeError)]
    for left, error in [*((number, ValueError) for number in numbers), *others]:
        with pytest.raises(error, match="deadline must return the seconds left"):
            Policy(deadline=lambda left=left: left).attempt_lease()
    with pytest.raises(ValueError, match="deadline must be a callable"):
        idempotency.run(lambda lease: 1, key="k", scope="tests", deadline=12)
