"""Round trips, counted on the wire: two calls for a first request, one for a duplicate."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.records import State
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.testing import FakeClock
from tests.integration.dynamodb.claims import (
    DAY,
    FINGERPRINT,
    HOUR,
    OTHER_FINGERPRINT,
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


class TestWithAllOld:
    """A server that says what a failed condition has met, as DynamoDB does."""

    def test_R24_first_request_is_a_claim_and_a_completion(
        self, store: DynamoDBStore, wire: Wire
    ) -> None:
        Engine(store).run(operation(), lambda lease: "done")

        assert wire.taken() == [UPDATE, UPDATE]

    def test_R25_duplicate_is_one_call(self, store: DynamoDBStore, wire: Wire) -> None:
        Engine(store).run(operation(), lambda lease: "done")
        wire.taken()

        outcome = Engine(store).run(operation(), lambda lease: pytest.fail("ran"))

        assert (outcome.result, outcome.replayed) == ("done", True)
        assert wire.taken() == [UPDATE]

    @pytest.mark.parametrize("state", ["in progress", "mismatch", "stale"])
    def test_refused_claim_is_one_call(self, store: DynamoDBStore, wire: Wire, state: str) -> None:
        lease = timedelta(seconds=-10 if state == "stale" else 60)
        won(store.claim(asked(lease=lease)))
        wire.taken()
        fingerprints = (OTHER_FINGERPRINT if state == "mismatch" else FINGERPRINT,)
        on_stale = "refuse" if state == "stale" else "take_over"

        lost(store.claim(asked(fingerprints=fingerprints, on_stale=on_stale)))

        assert wire.taken() == [UPDATE]

    @pytest.mark.parametrize("before", ["failed", "released", "lapsed"])
    def test_claim_again_is_one_call(self, store: DynamoDBStore, wire: Wire, before: str) -> None:
        lease = won(store.claim(asked(lease=timedelta(seconds=-10))))
        if before == "failed":
            store.fail(lease, "boom")
        elif before == "released":
            store.release(lease)
        wire.taken()

        won(store.claim(asked()))

        assert wire.taken() == [UPDATE]

    def test_claim_of_an_expired_record_that_is_still_there_is_two_calls(
        self, make_store: MakeStore
    ) -> None:
        clock = FakeClock()
        store = make_store(clock=clock)
        store.complete(won(store.claim(asked())), b"old", retention=HOUR)
        clock.advance(DAY)
        wire = Wire(store)

        won(store.claim(asked(fingerprints=(OTHER_FINGERPRINT,))))

        assert wire.taken() == [UPDATE, PUT]

    def test_I6_claim_by_an_older_fingerprint_is_two_calls(
        self, store: DynamoDBStore, wire: Wire
    ) -> None:
        store.fail(won(store.claim(asked())), "boom")
        wire.taken()

        won(store.claim(asked(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT))))

        assert wire.taken() == [UPDATE, UPDATE]
        assert found(store).fingerprint == FINGERPRINT

    def test_endings_and_renewals_are_one_call_each(self, store: DynamoDBStore, wire: Wire) -> None:
        leases = [won(store.claim(asked(str(number)))) for number in range(5)]
        wire.taken()

        assert store.renew(leases, HOUR) == set(leases)
        assert wire.taken() == [UPDATE] * 5
        store.fail(leases[0], "boom")
        store.release(leases[1])
        assert wire.taken() == [UPDATE] * 2

    def test_completion_that_was_made_before_is_one_call(
        self, store: DynamoDBStore, wire: Wire
    ) -> None:
        lease = won(store.claim(asked()))
        store.complete(lease, b"done", retention=HOUR)
        wire.taken()

        store.complete(lease, b"done", retention=HOUR)

        assert wire.taken() == [UPDATE]


class TestWithoutAllOld:
    """A server that does not: one consistent read where a condition has failed."""

    @pytest.fixture
    def kind(self) -> str:
        return "dynalite"

    def test_R24_first_request_is_a_claim_and_a_completion(
        self, store: DynamoDBStore, wire: Wire
    ) -> None:
        Engine(store).run(operation(), lambda lease: "done")

        assert wire.taken() == [UPDATE, UPDATE]

    def test_R25_duplicate_is_two_calls(self, store: DynamoDBStore, wire: Wire) -> None:
        Engine(store).run(operation(), lambda lease: "done")
        wire.taken()

        assert Engine(store).run(operation(), lambda lease: pytest.fail("ran")).replayed

        assert wire.taken() == [UPDATE, GET]

    def test_completion_that_was_made_before_is_two_calls(
        self, store: DynamoDBStore, wire: Wire
    ) -> None:
        lease = won(store.claim(asked()))
        store.complete(lease, b"done", retention=HOUR)
        wire.taken()

        store.complete(lease, b"done", retention=HOUR)

        assert wire.taken() == [UPDATE, GET]

    def test_endings_of_a_lost_lease_read_nothing(self, store: DynamoDBStore, wire: Wire) -> None:
        lease = won(store.claim(asked()))
        store.release(lease)
        wire.taken()

        store.fail(lease, "late")
        store.release(lease)
        assert store.renew([lease], HOUR) == set()

        assert wire.taken() == [UPDATE] * 3
        assert found(store).state is State.RELEASED


def test_get_is_one_consistent_read(store: DynamoDBStore, wire: Wire) -> None:
    asked_for: list[Any] = []
    events = store.table.client.native.meta.events
    events.register(
        "provide-client-params.dynamodb.GetItem",
        lambda params, **kwargs: asked_for.append(params["ConsistentRead"]),
    )

    assert store.get(record_id()) is None

    assert wire.taken() == [GET]
    assert asked_for == [True]
