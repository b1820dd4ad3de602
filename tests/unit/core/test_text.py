"""A record as text: it comes back whole, and what is no record is an error."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from uuid import uuid4

import pytest
from hypothesis import given, settings
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
    times = dict.fromkeys(("created_at", "updated_at", "expires_at", "now"), NOW)
    texts = {name: name for name in ("scope", "key", "operation", "error")}
    fields = {"state": State.COMPLETED, "lease_until": None, "result": b"result"}
    ids = {"record_id": uuid4(), "token": uuid4(), "epoch": 1, "attempts": 1}
    record = Record(**times, **texts, **fields, **ids, fingerprint=b"1" * 32)
    return dict(json.loads(dump(record)))


@given(records)
@settings(max_examples=40)
def test_record_comes_back_whole(record):
    assert load(dump(record), now=NOW) == record


def test_record_that_lacks_something_is_damaged():
    for name in kept():
        values = kept()
        del values[name]
        with pytest.raises(StoreError, match="damaged"):
            load(json.dumps(values), now=NOW)


def test_record_with_something_else_in_it_is_damaged():
    for name, value in (
        ("state", None),
        ("state", "NO STATE"),
        ("token", 5),
        ("epoch", "many"),
        ("epoch", float("inf")),
        ("created_at", "2026-01-01T00:00:00"),
        ("created_at", None),
        ("expires_at", "soon"),
        ("result", "xyz"),
    ):
        with pytest.raises(StoreError, match="damaged"):
            load(json.dumps({**kept(), name: value}), now=NOW)


def test_text_that_holds_no_record_is_damaged():
    for text in ("", "[]", "5", "{}", '"state"', "[" * 100_000):
        with pytest.raises(StoreError, match="damaged"):
            load(text, now=NOW)
