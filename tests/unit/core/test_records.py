"""Records: what is made of the values that a store is given, and of those that it gives back."""

from __future__ import annotations

import json
import weakref
from dataclasses import MISSING, fields, replace
from datetime import datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency.claims import ClaimRequest, Resolution
from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import Filters, Record, State
from django_idempotency.stores.database.rows import record_of
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.stores.text import dump, load
from tests.claims import asked, found, record_id
from tests.meetings import MEANS, READERS, what_it_means

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
WHOLE = Record(
    **{name: record_id() for name in ("record_id", "token")},
    **{name: name for name in ("scope", "key", "operation", "error")},
    **dict.fromkeys(("created_at", "updated_at", "expires_at", "now"), NOW),
    **{"fingerprint": b"1" * 32, "state": State.COMPLETED, "epoch": 1, "attempts": 1},
    lease_until=None,
    result=b"result",
)


@pytest.mark.parametrize("name", ["lease", "retention", "max_duration"])
def test_duration_of_a_claim_is_a_timedelta_or_seconds(name):
    seconds = [90, 90.0, timedelta(seconds=90)]
    assert {getattr(asked(**{name: it}), name) for it in seconds} == {timedelta(seconds=90)}
    for wrong in ("90", None, True, float("nan")):
        with pytest.raises(TypeError, match="a timedelta or a number of seconds, not"):
            asked(**{name: wrong})


def test_lifetime_of_a_claim_covers_the_longest_work():
    day, hour = timedelta(days=1), timedelta(hours=1)
    assert ClaimRequest(UUID(int=1), "s", "k", retention=day, max_duration=hour).lifetime == day
    assert asked(retention=hour, max_duration=day, lease=hour).lifetime == day + hour


def test_R95_record_of_a_store_is_input():
    numbers = [("epoch", "1"), ("epoch", 1e300), ("attempts", None), ("state", "COMPLETED")]
    texts = [("scope", None), ("key", b"k"), ("operation", 5), ("error", b""), ("token", "token")]
    times = [("lease_until", 5), ("created_at", datetime(2026, 1, 1)), ("expires_at", "soon")]
    results = [("fingerprint", "text"), ("result", "text"), ("result", 10**12)]
    for name, value in numbers + texts + times + results:
        with pytest.raises(StoreError, match=f"damaged: its {name} is of another type"):
            replace(WHOLE, **{name: value})


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("fingerprint", value) for value in (10**12, "text", b"")),
        *(("created_at", None), ("result", 10**12), ("epoch", "1")),
    ],
)
def test_R95_row_of_SQLite_may_hold_anything(column, value):
    at, token = "2026-01-01 00:00:00.000", record_id().hex
    row = dict.fromkeys((field.column for field in IdempotencyRecord._meta.concrete_fields), "")
    row |= {"id": token, "token": token, "state": "COMPLETED", "epoch": 1, "attempts": 1}
    row |= dict.fromkeys(("created_at", "updated_at", "expires_at", "clock"), at)
    row |= {"fingerprint": None, "lease_until": None, "result": b""}
    assert record_of(row.values())[0] is not None
    row[column] = value
    with pytest.raises(StoreError, match="damaged"):
        record_of(row.values())


times = st.datetimes(timezones=st.just(timezone.utc))
records = st.builds(
    replace,
    st.just(WHOLE),
    **{name: st.text() for name in ("scope", "key", "operation", "error")},
    **dict.fromkeys(("created_at", "updated_at"), times),
    **{name: st.none() | times for name in ("lease_until", "expires_at")},
    record_id=st.uuids(),
    state=st.sampled_from(State),
    epoch=st.integers(min_value=0, max_value=2**63 - 1),
    fingerprint=st.none() | st.binary(min_size=32, max_size=32),
    result=st.none() | st.binary(),
)


@given(records)
def test_record_as_text_comes_back_whole(record):
    assert load(dump(record), now=NOW) == record


def test_R95_text_that_is_no_record_is_damaged():
    kept = json.loads(dump(WHOLE))
    states = [("state", None), ("state", "NO STATE"), ("token", 5), ("result", "xyz")]
    numbers = [("epoch", "many"), ("epoch", float("inf")), ("expires_at", "soon")]
    times = [("created_at", "2026-01-01T00:00:00"), ("created_at", None)]
    wrong = [{**kept, name: value} for name, value in states + numbers + times]
    needed = [field.name for field in fields(Record) if field.default is MISSING]
    wrong += [{k: v for k, v in kept.items() if k != name} for name in needed if name != "now"]
    texts = ["", "[]", "5", "{}", '"state"', "[" * 100_000, *map(json.dumps, wrong)]
    for text in texts:
        with pytest.raises(StoreError, match="damaged"):
            load(text, now=NOW)


def test_filters_may_be_a_mapping_with_the_name_of_a_state():
    assert Filters.of({"state": "FAILED", "stale": False}) == Filters(State.FAILED, stale=False)
    assert [Filters.of(given) for given in ({}, None, Filters())] == [Filters()] * 3
    for wrong, error, told in (
        ({"state": "COMPLETE"}, ValueError, "'COMPLETE' is not a valid State"),
        ({"operations": "x"}, TypeError, r"no 'operations'\. Did you mean 'operation'"),
        ("COMPLETED", TypeError, "filters must be Filters or a mapping, not a str"),
    ):
        with pytest.raises(error, match=told):
            Filters.of(wrong)


@pytest.mark.parametrize(
    ("action", "result"),
    [("complete", None), ("release", b"operator"), ("expire", b"operator"), ("delete", None)],
)
def test_resolution_that_makes_no_sense_is_refused(action, result):
    with pytest.raises(ValueError, match=r"operator|result"):
        Resolution(action, epoch=1, state=State.FAILED, result=result)


def test_R71_resolution_knows_its_state_by_name_and_no_other_state():
    assert Resolution("release", epoch=1, state="FAILED").state is State.FAILED
    with pytest.raises(ValueError, match="'LAPSED' is not a valid State"):
        Resolution("release", epoch=1, state="LAPSED")


def test_R79_a_lease_shows_its_record_and_neither_key_nor_token(memory):
    shown = repr(memory.claim(asked()))
    assert str(record_id())[:12] in shown
    assert str(found(memory).token) not in shown
    assert [(str(it), it.value) for it in State] == [(it.name, it.name) for it in State]


def test_a_memory_store_that_nobody_uses_is_not_kept():
    store = weakref.ref(MemoryStore())
    assert store() is None


@pytest.mark.parametrize("reader", READERS)
def test_I4_record_of_a_call_means_the_same_to_a_block_and_to_coroutines(reader):
    assert what_it_means(Engine(MemoryStore()), reader) == MEANS
