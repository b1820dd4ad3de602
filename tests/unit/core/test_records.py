"""What is made of the values that a store is given: durations, filters."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_idempotency.claims import ClaimRequest, Resolution
from django_idempotency.exceptions import StoreError
from django_idempotency.keys import record_id
from django_idempotency.records import Filters, Record, State
from django_idempotency.stores.database.rows import record_of

DURATIONS = ["lease", "retention", "max_duration"]


def asked(**fields: Any) -> ClaimRequest:
    return ClaimRequest(record_id("call", "s", "k"), "s", "k", **fields)


@pytest.mark.parametrize("name", DURATIONS)
def test_duration_of_a_claim_may_be_seconds(name: str) -> None:
    given = [90, 90.0, timedelta(seconds=90)]
    assert {getattr(asked(**{name: it}), name) for it in given} == {timedelta(seconds=90)}


@pytest.mark.parametrize("name", DURATIONS)
def test_what_is_no_duration_is_told(name: str) -> None:
    for given in ("90", None, True, float("nan")):
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


def test_R95_record_of_a_store_is_input() -> None:
    for name, value in (
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
    ):
        wrong: Any = {name: value}
        with pytest.raises(StoreError, match=f"damaged: its {name} is of another type"):
            replace(WHOLE, **wrong)


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


def test_filters_may_be_a_mapping_with_the_name_of_a_state() -> None:
    assert Filters.of({"state": "FAILED", "stale": False}) == Filters(State.FAILED, stale=False)
    assert [Filters.of(given) for given in ({}, None, Filters())] == [Filters()] * 3


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"state": "COMPLETE"}, ValueError, "'COMPLETE' is not a valid State"),
        ({"operations": "x"}, TypeError, r"no 'operations'\. Did you mean 'operation'"),
        ("COMPLETED", TypeError, "filters must be Filters or a mapping, not a str"),
    ],
)
def test_what_is_no_filter_is_told(given: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        Filters.of(given)


@pytest.mark.parametrize(
    ("action", "result"),
    [("complete", None), ("release", b"operator"), ("expire", b"operator"), ("delete", None)],
)
def test_resolution_that_makes_no_sense_is_refused(action: str, result: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"operator|result"):
        Resolution(action, epoch=1, state=State.FAILED, result=result)
