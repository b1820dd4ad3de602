"""What is made of the values that a store is given: durations, filters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_idempotency.keys import record_id
from django_idempotency.records import ClaimRequest, Filters, State

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
