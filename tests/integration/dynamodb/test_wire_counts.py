"""Round trips, counted on the wire: two calls for a first request, one for a duplicate."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.records import Lease
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.testing import FakeClock
from tests.integration.dynamodb.claims import (
    DAY,
    FINGERPRINT,
    HOUR,
    OTHER_FINGERPRINT,
    OTHERS,
    asked,
    found,
    lost,
    operation,
    record_id,
    won,
)
from tests.integration.dynamodb.conftest import MakeStore
from tests.integration.dynamodb.wire import Wire

UPDATE, PUT, GET = "UpdateItem", "PutItem", "GetItem"
LAPSED = timedelta(seconds=-10)


@pytest.fixture(params=["moto", "dynalite"])
def kind(request: pytest.FixtureRequest) -> str:
    """A server that says what a failed condition has met, as DynamoDB does, and one without."""
    return str(request.param)


def test_R24_R25_a_first_request_is_two_calls_and_a_duplicate_one(
    store: DynamoDBStore, wire: Wire, kind: str
) -> None:
    Engine(store).run(operation(), lambda lease: "done")
    assert wire.taken() == [UPDATE, UPDATE]

    assert Engine(store).run(operation(), lambda lease: pytest.fail("ran")).replayed
    assert wire.taken() == [UPDATE, *([GET] if kind == "dynalite" else [])]


@pytest.mark.parametrize("kind", ["moto"])
@pytest.mark.parametrize(
    ("held", "request_"),
    [
        (HOUR, asked()),
        (HOUR, OTHERS),
        (LAPSED, asked(on_stale="refuse")),
    ],
    ids=["in progress", "mismatch", "stale"],
)
def test_refused_claim_is_one_call(
    store: DynamoDBStore, wire: Wire, held: timedelta, request_: Any
) -> None:
    won(store.claim(asked(lease=held)))
    wire.taken()

    lost(store.claim(request_))

    assert wire.taken() == [UPDATE]


ENDINGS: dict[str, Callable[[DynamoDBStore, Lease], None]] = {
    "failed": lambda store, lease: store.fail(lease, "boom"),
    "released": lambda store, lease: store.release(lease),
    "lapsed": lambda store, lease: None,
}


@pytest.mark.parametrize("before", ENDINGS)
def test_claim_again_is_one_call(store: DynamoDBStore, wire: Wire, before: str) -> None:
    ENDINGS[before](store, won(store.claim(asked(lease=LAPSED))))
    wire.taken()

    won(store.claim(asked()))

    assert wire.taken() == [UPDATE]


@pytest.mark.parametrize("kind", ["moto"])
def test_claim_of_an_expired_record_that_is_still_there_is_two_calls(
    make_store: MakeStore,
) -> None:
    clock = FakeClock()
    store = make_store(clock=clock)
    store.complete(won(store.claim(asked())), b"old", retention=HOUR)
    clock.advance(DAY)
    wire = Wire(store)

    won(store.claim(OTHERS))

    assert wire.taken() == [UPDATE, PUT]


@pytest.mark.parametrize("kind", ["moto"])
def test_I6_claim_by_an_older_fingerprint_is_two_calls(store: DynamoDBStore, wire: Wire) -> None:
    store.fail(won(store.claim(asked())), "boom")
    wire.taken()

    won(store.claim(asked(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT))))

    assert wire.taken() == [UPDATE, UPDATE]
    assert found(store).fingerprint == FINGERPRINT


def test_endings_and_renewals_are_one_call_each_in_vain_too(
    store: DynamoDBStore, wire: Wire
) -> None:
    leases = [won(store.claim(asked(str(number)))) for number in range(5)]
    wire.taken()

    for held in (set(leases), set(leases[2:])):
        assert store.renew(leases, HOUR) == held
        store.fail(leases[0], "boom")
        store.release(leases[1])
        assert wire.taken() == [UPDATE] * 7


def test_completion_that_was_made_before_is_read_where_the_server_does_not_say_so(
    store: DynamoDBStore, wire: Wire, kind: str
) -> None:
    lease = won(store.claim(asked()))
    store.complete(lease, b"done", retention=HOUR)
    wire.taken()

    store.complete(lease, b"done", retention=HOUR)

    assert wire.taken() == [UPDATE, *([GET] if kind == "dynalite" else [])]


@pytest.mark.parametrize("kind", ["moto"])
def test_get_is_one_consistent_read(store: DynamoDBStore, wire: Wire) -> None:
    asked_for: list[Any] = []
    store.table.client.native.meta.events.register(
        "provide-client-params.dynamodb.GetItem",
        lambda params, **kwargs: asked_for.append(params["ConsistentRead"]),
    )

    assert store.get(record_id()) is None

    assert (wire.taken(), asked_for) == ([GET], [True])
