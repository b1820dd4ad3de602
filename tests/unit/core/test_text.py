"""A record as text: it comes back whole, and what is no record is an error."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency.exceptions import StoreError
from django_idempotency.records import Record, State
from django_idempotency.stores.text import dump, load

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)

times = st.datetimes(timezones=st.just(timezone.utc))
records = st.builds(
    Record,
    record_id=st.uuids(),
    scope=st.text(),
    key=st.text(),
    operation=st.text(),
    fingerprint=st.none() | st.binary(min_size=32, max_size=32),
    state=st.sampled_from(State),
    epoch=st.integers(min_value=0, max_value=2**63 - 1),
    token=st.uuids(),
    lease_until=st.none() | times,
    created_at=times,
    updated_at=times,
    expires_at=st.none() | times,
    attempts=st.integers(min_value=1),
    result=st.none() | st.binary(),
    error=st.text(),
    now=st.just(NOW),
)


def kept() -> dict[str, object]:
    """What text holds of a record that was completed."""
    record = Record(
        record_id=uuid4(),
        scope="scope",
        key="key",
        operation="pay",
        fingerprint=b"1" * 32,
        state=State.COMPLETED,
        epoch=1,
        token=uuid4(),
        lease_until=None,
        created_at=NOW,
        updated_at=NOW,
        expires_at=NOW + timedelta(hours=1),
        attempts=1,
        result=b"result",
        error="",
        now=NOW,
    )
    return dict(json.loads(dump(record)))


@given(records)
def test_record_comes_back_whole(record):
    assert load(dump(record), now=NOW) == record


@pytest.mark.parametrize("name", sorted(kept()))
def test_record_that_lacks_something_is_damaged(name):
    values = kept()
    del values[name]

    with pytest.raises(StoreError, match="damaged"):
        load(json.dumps(values), now=NOW)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", None),
        ("state", "NO STATE"),
        ("token", 5),
        ("epoch", "many"),
        ("epoch", float("inf")),
        ("created_at", "2026-01-01T00:00:00"),
        ("created_at", None),
        ("expires_at", "soon"),
        ("result", "xyz"),
    ],
)
def test_record_with_something_else_in_it_is_damaged(name, value):
    with pytest.raises(StoreError, match="damaged"):
        load(json.dumps({**kept(), name: value}), now=NOW)


@pytest.mark.parametrize("text", ["", "[]", "5", "{}", '"state"', "[" * 100_000])
def test_text_that_holds_no_record_is_damaged(text):
    with pytest.raises(StoreError, match="damaged"):
        load(text, now=NOW)
