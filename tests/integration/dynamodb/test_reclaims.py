"""What happens between two calls of one claim: the second repeats its whole predicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_idempotency.records import Lease, State
from django_idempotency.stores.dynamodb import TRIES, DynamoDBStore
from django_idempotency.testing import FakeClock
from tests.integration.dynamodb.claims import (
    DAY,
    FINGERPRINT,
    HOUR,
    OTHER_FINGERPRINT,
    asked,
    found,
    lost,
    once,
    record_id,
    won,
)
from tests.integration.dynamodb.conftest import MakeStore
from tests.integration.dynamodb.wire import Wire

OTHERS = asked(fingerprints=(OTHER_FINGERPRINT,))


@pytest.fixture(params=["moto", "dynalite"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both servers: on dynalite there is a read between the two, too."""
    return str(request.param)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(make_store: MakeStore, clock: FakeClock) -> DynamoDBStore:
    return make_store(clock=clock, ttl=False)


class TestExpired:
    """A record whose lease has lapsed and whose time is over; its owner is only slow."""

    @pytest.fixture
    def owners(self, store: DynamoDBStore, clock: FakeClock) -> Lease:
        lease = won(store.claim(asked(max_duration=HOUR, retention=HOUR)))
        clock.advance(DAY)
        return lease

    def test_I3_completed_meanwhile(self, store: DynamoDBStore, owners: Lease) -> None:
        once(store, "put", lambda: store.complete(owners, b"done", retention=DAY))

        record = lost(store.claim(OTHERS))

        assert (record.state, record.result) == (State.COMPLETED, b"done")
        assert found(store) == record

    def test_R69_renewed_meanwhile(self, store: DynamoDBStore, owners: Lease) -> None:
        once(store, "put", lambda: store.renew([owners], HOUR))

        assert lost(store.claim(OTHERS)).live

    @pytest.mark.parametrize("ending", ["fail", "release"])
    def test_ended_meanwhile(self, store: DynamoDBStore, owners: Lease, ending: str) -> None:
        """It is still expired, so anything may claim it, and starts it anew."""
        endings: dict[str, Callable[[], None]] = {
            "fail": lambda: store.fail(owners, "late"),
            "release": lambda: store.release(owners),
        }
        once(store, "put", endings[ending])

        lease = won(store.claim(OTHERS))

        record = found(store)
        assert (record.token, record.fingerprint) == (lease.token, OTHER_FINGERPRINT)
        assert (record.attempts, record.error) == (1, "")

    def test_resolved_meanwhile(self, store: DynamoDBStore, owners: Lease) -> None:
        """The operator comes too late: the record has expired; the claim goes on."""
        once(
            store,
            "put",
            lambda: store.resolve(
                record_id(), "release", epoch=owners.fencing_token, state=State.IN_PROGRESS
            ),
        )

        assert won(store.claim(OTHERS)).fencing_token > owners.fencing_token

    def test_I1_claimed_meanwhile(self, store: DynamoDBStore, owners: Lease) -> None:
        first: list[Lease] = []
        once(store, "put", lambda: first.append(won(store.claim(asked()))))

        record = lost(store.claim(OTHERS))

        assert (record.live, record.token) == (True, first[0].token)

    def test_I2_claimed_and_expired_again_meanwhile(
        self, store: DynamoDBStore, owners: Lease
    ) -> None:
        past: dict[str, Any] = {"lease": -HOUR, "retention": -HOUR, "max_duration": -DAY}
        first: list[Lease] = []
        once(store, "put", lambda: first.append(won(store.claim(asked(**past)))))

        lease = won(store.claim(OTHERS))

        assert lease.fencing_token > first[0].fencing_token

    def test_R76_swept_meanwhile(self, store: DynamoDBStore, owners: Lease) -> None:
        once(store, "put", store.sweep)

        won(store.claim(OTHERS))

        assert found(store).fingerprint == OTHER_FINGERPRINT


class TestOlderFingerprint:
    """A failed record that the newcomer knows by an older fingerprint."""

    ROTATED = asked(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT))

    @pytest.fixture
    def failed(self, store: DynamoDBStore) -> Lease:
        lease = won(store.claim(asked()))
        store.fail(lease, "boom")
        return lease

    def test_I1_claimed_meanwhile(self, store: DynamoDBStore, failed: Lease) -> None:
        def between() -> None:
            once(store, "update", lambda: won(store.claim(asked())))

        once(store, "update", between)
        # The first update is let through and fails; the other claims before the second.
        record = lost(store.claim(self.ROTATED))

        assert record.live

    def test_released_meanwhile_by_an_operator(self, store: DynamoDBStore, failed: Lease) -> None:
        def released() -> bool:
            epoch, state = failed.fencing_token, State.FAILED
            return store.resolve(record_id(), "release", epoch=epoch, state=state)

        once(store, "update", lambda: once(store, "update", released))

        won(store.claim(self.ROTATED))

        assert found(store).attempts == 2


class TestVanished:
    """On dynalite a failed condition is read after: the record may be gone by then."""

    @pytest.fixture
    def kind(self) -> str:
        return "dynalite"

    def test_R76_swept_between_the_conflict_and_the_read(
        self, store: DynamoDBStore, clock: FakeClock
    ) -> None:
        store.complete(won(store.claim(asked())), b"old", retention=HOUR)
        clock.advance(DAY)
        once(store, "item", store.sweep)

        assert won(store.claim(OTHERS)).record_id == record_id()

    def test_R54_it_is_not_looked_for_for_ever_and_counts_as_in_progress(
        self, store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        won(store.claim(asked()))
        looks: list[object] = []
        monkeypatch.setattr(store.table, "item", looks.append)

        record = lost(store.claim(OTHERS))

        assert (record.live, record.lease_left) == (True, None)
        assert len(looks) == TRIES


@pytest.mark.parametrize("ending", [State.FAILED, State.RELEASED])
def test_R68_late_resend_of_a_claim_does_not_take_again_what_its_owner_has_ended(
    store: DynamoDBStore, ending: State
) -> None:
    lease = won(store.claim(asked()))
    store.fail(lease, "boom") if ending is State.FAILED else store.release(lease)
    wire = Wire(store)

    record = lost(store.claim(lease.request))

    assert (record.state, record.token) == (ending, lease.token)
    assert found(store).state is ending
    assert wire.taken().count("UpdateItem") == 1


def test_I9_R75_sweep_leaves_what_was_claimed_after_it_was_read(
    store: DynamoDBStore, clock: FakeClock
) -> None:
    store.complete(won(store.claim(asked())), b"old", retention=HOUR)
    clock.advance(DAY)
    once(store, "delete", lambda: won(store.claim(asked())))

    assert store.sweep() == 0

    assert found(store).live


def test_I9_R75_sweep_leaves_a_lease_that_was_renewed_after_it_was_read(
    store: DynamoDBStore, clock: FakeClock
) -> None:
    lease = won(store.claim(asked(max_duration=HOUR, retention=HOUR)))
    clock.advance(DAY)
    once(store, "delete", lambda: store.renew([lease], HOUR))

    assert store.sweep() == 0

    assert found(store).live
