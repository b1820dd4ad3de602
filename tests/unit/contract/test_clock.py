"""FakeClock: it stands still, moves when told, and is a memory store's."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from django_idempotency.keys import new_token
from django_idempotency.records import ClaimRequest, Lease, Record
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock

NEW_YEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_it_begins_with_now_and_stands_still() -> None:
    before = datetime.now(timezone.utc)

    clock = FakeClock()

    assert before <= clock() <= datetime.now(timezone.utc)
    assert clock() == clock()


def test_it_may_begin_elsewhere_and_is_in_utc() -> None:
    start = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))

    clock = FakeClock(start)

    assert clock() == NEW_YEAR
    assert clock().utcoffset() == timedelta(0)


def test_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        FakeClock(datetime(2026, 1, 1))


@pytest.mark.parametrize("duration", [timedelta(seconds=90), 90, 90.0])
def test_it_moves_when_told(duration: timedelta | float) -> None:
    clock = FakeClock(NEW_YEAR)

    assert clock.advance(duration) == clock() == NEW_YEAR + timedelta(seconds=90)


def test_it_may_go_back() -> None:
    clock = FakeClock(NEW_YEAR)

    clock.advance(-1)

    assert clock() == NEW_YEAR - timedelta(seconds=1)


def test_it_shows_its_time() -> None:
    assert repr(FakeClock(NEW_YEAR)) == "<FakeClock 2026-01-01T00:00:00+00:00>"


def test_it_is_the_time_of_a_store() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    request = ClaimRequest(new_token(), "s", "k", lease=timedelta(seconds=60))
    store.claim(request)

    def claimed() -> Lease | Record:
        return store.claim(ClaimRequest(request.record_id, "s", "k"))

    clock.advance(59)
    assert isinstance(claimed(), Record)
    clock.advance(1)
    assert isinstance(claimed(), Lease)
