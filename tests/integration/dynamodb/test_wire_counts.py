"""Round trips, counted on the wire: two calls for a first request, one for a duplicate."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.leases import Lease
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.testing import FakeClock
from tests.integration.dynamodb.claims import (
    DAY,
    FINGERPRINT,
    HOUR,
    OTHER_FINGERPRINT,
    OTHERS,
    asked,
    operation,
    record_id,
    won,
)
from tests.integration.dynamodb.conftest import MakeStore
from tests.integration.dynamodb.wire import Wire

UPDATE, PUT, GET = "UpdateItem", "PutItem", "GetItem"
LAPSED = timedelta(seconds=-10)


def test_R24_R25_a_first_request_is_two_calls_and_a_duplicate_one(
    store: DynamoDBStore, wire: Wire
) -> None:
    Engine(store).run(operation(), lambda lease: "done")
    assert wire.taken() == [UPDATE, UPDATE]

    assert Engine(store).run(operation(), lambda lease: pytest.fail("ran")).replayed
    assert wire.taken() == [UPDATE]


@pytest.mark.parametrize(
    ("before", "request_", "wins", "calls"),
    [
        ({"lease": HOUR}, asked(), False, [UPDATE]),
        ({"lease": HOUR}, OTHERS, False, [UPDATE]),
        ({"lease": LAPSED}, asked(on_stale="refuse"), False, [UPDATE]),
        ({"lease": LAPSED}, asked(), True, [UPDATE]),
        ("failed", asked(), True, [UPDATE]),
        ("failed", asked(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT)), True, [UPDATE, UPDATE]),
        ("released", OTHERS, True, [UPDATE]),
        ("expired", OTHERS, True, [UPDATE, PUT]),
    ],
    ids=["live", "mismatch", "stale", "lapsed", "failed", "I6_older", "released", "expired"],
)
def test_claims_are_one_call_and_two_where_an_update_cannot_say_it(
    make_store: MakeStore, before: Any, request_: Any, wins: bool, calls: list[str]
) -> None:
    clock = FakeClock()
    store = make_store(clock=clock)
    lease = won(store.claim(asked(**(before if isinstance(before, dict) else {}))))
    if before == "failed":
        store.fail(lease, "boom")
    elif before == "released":
        store.release(lease)
    elif before == "expired":
        store.complete(lease, b"old", retention=HOUR)
        clock.advance(DAY)
    wire = Wire(store)

    claimed = store.claim(request_)

    assert isinstance(claimed, Lease) is wins
    assert wire.taken() == calls


@pytest.mark.parametrize("kind", ["moto", "dynalite"])
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


@pytest.mark.parametrize(("kind", "more"), [("moto", []), ("dynalite", [GET])])
def test_what_a_failed_condition_met_is_read_where_the_server_does_not_say(
    store: DynamoDBStore, wire: Wire, more: list[str]
) -> None:
    lease = won(store.claim(asked()))
    store.complete(lease, b"done", retention=HOUR)
    wire.taken()

    store.complete(lease, b"done", retention=HOUR)
    assert wire.taken() == [UPDATE, *more]
    store.claim(asked())
    assert wire.taken() == [UPDATE, *more]


def test_get_is_one_consistent_read(store: DynamoDBStore, wire: Wire) -> None:
    asked_for: list[Any] = []
    store.table.client.native.meta.events.register(
        "provide-client-params.dynamodb.GetItem",
        lambda params, **kwargs: asked_for.append(params["ConsistentRead"]),
    )

    assert store.get(record_id()) is None

    assert (wire.taken(), asked_for) == ([GET], [True])
