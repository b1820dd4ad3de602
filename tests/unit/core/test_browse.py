"""A page of `browse`: what ends it, and that its cursor says where."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.exceptions import StoreError
from django_idempotency.records import Page
from django_idempotency.stores import base
from django_idempotency.stores.memory import MemoryStore
from tests.claims import asked, won

KEYS = [f"key-{number}" for number in range(6)]


class SteppingStore(MemoryStore):
    """Each step takes so many seconds; after them the store does not answer, after so many more."""

    now = 0.0

    def __init__(self, *takes: float, fails_after: float = 0) -> None:
        super().__init__()
        self.takes, self.fails_after = [*takes], fails_after
        for key in reversed(KEYS):
            won(self.claim(asked(key)))

    def monotonic(self) -> float:
        return self.now

    def look_on(self, *asked: Any) -> tuple[Page, int]:
        if not self.takes:
            self.now += self.fails_after
            raise StoreError("The store does not answer.")
        self.now += self.takes.pop(0)
        return super().look_on(*asked)


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``stepping(1, 2, fails_after=3)``: a store of six records, of which a step looks at two."""
    monkeypatch.setattr(base, "LOOKED_AT", 2)

    def stepping(*takes: float, **more: float) -> SteppingStore:
        store = SteppingStore(*takes, **more)
        monkeypatch.setattr(base, "time", store)
        return store

    return stepping


def found_by(page: Page) -> list[str]:
    return [record.key for record in page.records]


@pytest.mark.parametrize(
    ("takes", "number"),
    [((1, 1, 1), 6), ((1, 6), 4), ((5,), 2), ((6,), 2)],
    ids=["in time", "over in the second step", "over with the first", "one long step"],
)
def test_no_step_begins_when_the_time_is_over_and_the_cursor_leads_on(
    stepping: Any, takes: tuple[float, ...], number: int
) -> None:
    store = stepping(*takes)

    page = store.browse(seconds=5)

    assert (found_by(page), page.cursor is None) == (KEYS[:number], number == 6)
    if page.cursor is not None:
        store.takes = [0, 0, 0]
        assert found_by(store.browse(cursor=page.cursor)) == KEYS[number:]


def test_a_statement_that_times_out_leaves_the_page_that_was_read_before_it(stepping: Any) -> None:
    page = stepping(1, fails_after=5).browse(seconds=5)

    assert (found_by(page), page.cursor is None) == (KEYS[:2], False)


@pytest.mark.parametrize(
    ("takes", "fails_after", "seconds"),
    [((), 9, 5), ((1,), 1, 5), ((1,), 9, None)],
    ids=["in the first step", "while there is time", "without a limit"],
)
def test_another_error_is_raised(
    stepping: Any, takes: tuple[float, ...], fails_after: float, seconds: float | None
) -> None:
    with pytest.raises(StoreError, match="does not answer"):
        stepping(*takes, fails_after=fails_after).browse(seconds=seconds)


@pytest.mark.parametrize(("limit", "within"), [(1, 6), (3, 4), (4, 3), (6, 1)])
def test_a_page_is_no_longer_than_its_limit_and_what_it_may_look_at(
    stepping: Any, limit: int, within: int
) -> None:
    page = stepping(*[0] * 6).browse(limit=limit, within=within)

    assert (found_by(page), page.cursor is None) == (KEYS[: min(limit, within)], False)
