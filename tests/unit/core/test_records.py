"""What is made of the values that a store is given: durations, filters."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_idempotency.exceptions import StoreError
from django_idempotency.keys import record_id
from django_idempotency.records import ClaimRequest, Filters, Record, State
from django_idempotency.stores.rows import record_of

DURATIONS = ["lease", "retention", "max_duration"]


def asked(**fields: Any) -> ClaimRequest:
    return ClaimRequest(record_id("call", "s", "k"), "s", "k", **fields)


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("given", [90, 90.0, timedelta(seconds=90)])
def test_duration_of_a_claim_may_be_seconds(name: str, given: Any) -> None:
    assert getattr(asked(**{name: given}), name) == timedelta(seconds=90)


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("given", ["90", None, True, float("nan")])
def test_what_is_no_duration_is_told(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match="a timedelta or a number of seconds, not"):
        asked(**{name: given})


WHOLE = Record(
    record_id=record_id("call", "s", "k"),
    scope="s",
    key="k",
    operation="",
    fingerprint=None,
    state=State.COMPLETED,
    epoch=1,
    token=record_id("call", "s", "k"),
    lease_until=None,
    created_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    updated_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    expires_at=None,
    attempts=1,
    result=b"",
    error="",
    now=datetime(2026, 1, 1, tzinfo=timezone.utc),
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scope", None),
        ("key", b"k"),
        ("operation", 5),
        ("fingerprint", "text"),
        ("state", "COMPLETED"),
        ("epoch", "1"),
        ("epoch", 1e300),
        ("token", "token"),
        ("lease_until", 5),
        ("created_at", datetime(2026, 1, 1)),
        ("expires_at", "soon"),
        ("attempts", None),
        ("result", "text"),
        ("result", 10**12),
        ("error", b""),
    ],
)
def test_R95_record_of_a_store_is_input(name: str, value: Any) -> None:
    with pytest.raises(StoreError, match=f"damaged: its {name} is of another type"):
        replace(WHOLE, **{name: value})


@pytest.mark.parametrize(
    ("column", "value"), [(4, 10**12), (4, "text"), (4, b""), (9, None), (13, 10**12), (6, "1")]
)
def test_R95_row_of_SQLite_may_hold_anything(column: int, value: Any) -> None:
    at = "2026-01-01 00:00:00.000"
    token = record_id("call", "s", "k").hex
    row = [token, "s", "k", "", None, "COMPLETED", 1, token, None, at, at, at, 1, b"", "", at]
    assert record_of(row)[0] is not None
    row[column] = value

    with pytest.raises(StoreError, match="damaged"):
        record_of(row)


@pytest.mark.parametrize("given", ["COMPLETED", State.COMPLETED])
def test_state_of_filters_may_be_its_name(given: Any) -> None:
    assert Filters(state=given).state is State.COMPLETED


def test_unknown_state_of_filters_is_told() -> None:
    name: Any = "COMPLETE"
    with pytest.raises(ValueError, match="'COMPLETE' is not a valid State"):
        Filters(state=name)


@pytest.mark.parametrize("given", [{}, None, Filters()])
def test_no_filters_are_all_records(given: Any) -> None:
    assert Filters.of(given) == Filters()


def test_filters_may_be_a_mapping() -> None:
    assert Filters.of({"state": "FAILED", "stale": False}) == Filters(State.FAILED, stale=False)


def test_unknown_filter_is_told_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"no 'operations'\. Did you mean 'operation'"):
        Filters.of({"operations": "x"})


def test_what_is_no_filter_is_told() -> None:
    wrong: Any = "COMPLETED"
    with pytest.raises(TypeError, match="filters must be Filters or a mapping, not a str"):
        Filters.of(wrong)
