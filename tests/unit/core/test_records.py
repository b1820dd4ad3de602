"""Records: what is made of their values, and what one means to an attempt that comes upon it."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from uuid import UUID

import pytest

from django_idempotency.claims import ClaimRequest, Decision, Resolution, decide
from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import Filters, Record, State
from django_idempotency.stores.database.rows import record_of
from django_idempotency.stores.memory import MemoryStore
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


def test_durations_of_a_claim_are_timedeltas_or_seconds_and_its_lifetime_covers_the_longest_work():
    for name in ("lease", "retention", "max_duration"):
        seconds = [90, 90.0, timedelta(seconds=90)]
        assert {getattr(asked(**{name: it}), name) for it in seconds} == {timedelta(seconds=90)}
        for wrong in ("90", None, True, float("nan")):
            with pytest.raises(TypeError, match="a timedelta or a number of seconds, not"):
                asked(**{name: wrong})
    day, hour = timedelta(days=1), timedelta(hours=1)
    request = ClaimRequest(UUID(int=1), "s", "k", retention=day, max_duration=hour)
    assert request.lifetime == 1.1 * day
    assert asked(retention=hour, max_duration=day, lease=hour).lifetime == day + hour


def test_R95_record_of_a_store_is_input():
    numbers = [("epoch", "1"), ("epoch", 1e300), ("attempts", None), ("state", "COMPLETED")]
    texts = [("scope", None), ("key", b"k"), ("operation", 5), ("error", b""), ("token", "token")]
    times = [("lease_until", 5), ("created_at", datetime(2026, 1, 1)), ("expires_at", "soon")]
    results = [("fingerprint", "text"), ("result", "text"), ("result", 10**12)]
    for name, value in numbers + texts + times + results:
        with pytest.raises(StoreError, match=f"damaged: its {name} is of another type"):
            replace(WHOLE, **{name: value})


def test_R95_row_of_SQLite_may_hold_anything():
    at, token = "2026-01-01 00:00:00.000", record_id().hex
    row = dict.fromkeys((field.column for field in IdempotencyRecord._meta.concrete_fields), "")
    row |= {"id": token, "token": token, "state": "COMPLETED", "epoch": 1, "attempts": 1}
    row |= dict.fromkeys(("created_at", "updated_at", "expires_at", "clock"), at)
    row |= {"fingerprint": None, "lease_until": None, "result": b"", "steps": None}
    assert record_of(row.values())[0] is not None
    fingerprints = [("fingerprint", value) for value in (10**12, "text", b"")]
    others = [("created_at", None), ("result", 10**12), ("steps", "text"), ("epoch", "1")]
    for column, value in fingerprints + others:
        with pytest.raises(StoreError, match="damaged"):
            record_of({**row, column: value}.values())


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


def test_R71_resolution_knows_its_state_by_name_and_makes_sense():
    assert Resolution("release", epoch=1, state="FAILED").state is State.FAILED
    by_operator = ("release", b"operator"), ("expire", b"operator")
    for action, result in (("complete", None), ("delete", None), *by_operator):
        with pytest.raises(ValueError, match=r"action|result"):
            Resolution(action, epoch=1, state=State.FAILED, result=result)
    for wrong in (
        {"step": "charge"},
        {"result": b"result"},
        {"not_done": True},
        {"result": b"result", "not_done": True},
        {"step": "charge", "result": b"result", "not_done": True},
    ):
        with pytest.raises(ValueError, match="takes a step with a result or not_done, or no step"):
            Resolution("resume", epoch=1, state=State.FAILED, **wrong)
    for action, result in (("complete", b"result"), ("release", None), ("expire", None)):
        for wrong in ({"step": "charge"}, {"not_done": True}):
            with pytest.raises(ValueError, match='"resume" alone'):
                Resolution(action, epoch=1, state=State.FAILED, result=result, **wrong)
    with pytest.raises(ValueError, match="'LAPSED' is not a valid State"):
        Resolution("release", epoch=1, state="LAPSED")
    with pytest.raises(TypeError, match="not str"):
        Resolution("complete", epoch=1, state=State.FAILED, result="secret")


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


# `decide`: what a record means to an attempt that comes upon it, as one table.

PAST, FUTURE = NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)
MINE, THEIRS = b"m" * 32, b"t" * 32
REPLAY, IN_PROGRESS, STALE = Decision.REPLAY, Decision.IN_PROGRESS, Decision.STALE
MISMATCH, AGAIN = Decision.MISMATCH, Decision.CLAIM_AGAIN
LEASES = {"no": None, "live": FUTURE, "ends now": NOW, "lapsed": PAST}
EXPIRIES = {"never": None, "later": FUTURE, "now": NOW, "passed": PAST}
FINGERPRINTS = {"same": MINE, "other": THEIRS, "unknown": None}

# An attempt in progress whose lease has no known end (a `single` on another connection) is live.
# "" stands for any; "a b" for a or b. Every combination is met by exactly one line.
TABLE = [
    # state, lease, expires, fingerprint, on_stale -> decision
    ("COMPLETED", "", "never|later", "same|unknown", "", REPLAY),
    ("COMPLETED", "", "never|later", "other", "", MISMATCH),
    ("COMPLETED", "", "now|passed", "", "", AGAIN),
    ("FAILED", "", "never|later", "same|unknown", "", AGAIN),
    ("FAILED", "", "never|later", "other", "", MISMATCH),
    ("FAILED", "", "now|passed", "", "", AGAIN),
    ("RELEASED", "", "", "", "", AGAIN),
    ("IN_PROGRESS", "no|live", "", "same|unknown", "", IN_PROGRESS),
    ("IN_PROGRESS", "no|live", "", "other", "", MISMATCH),
    ("IN_PROGRESS", "ends now|lapsed", "never|later", "same|unknown", "take_over", AGAIN),
    ("IN_PROGRESS", "ends now|lapsed", "never|later", "same|unknown", "refuse", STALE),
    ("IN_PROGRESS", "ends now|lapsed", "never|later", "other", "", MISMATCH),
    ("IN_PROGRESS", "ends now|lapsed", "now|passed", "", "", AGAIN),
]


def described(state, lease, expires, fingerprint):
    times = {"created_at": PAST, "updated_at": PAST, "now": NOW}
    until = {"lease_until": LEASES[lease], "expires_at": EXPIRIES[expires]}
    prints = {"fingerprint": FINGERPRINTS[fingerprint]}
    return replace(WHOLE, state=State(state), **times, **until, **prints)


def test_R47_decide():
    """Any of the fingerprints of a request is the same request."""
    choices = (State, LEASES, EXPIRIES, FINGERPRINTS, ["take_over", "refuse"])
    for *facts, on_stale in itertools.product(*choices):
        [decision] = [
            decision
            for *line, decision in TABLE
            if all(
                not condition or str(fact) in condition.split("|")
                for fact, condition in zip((*facts, on_stale), line, strict=True)
            )
        ]
        for others in ((), (b"2" * 32,)):
            request = asked(fingerprints=(*others, MINE), on_stale=on_stale)
            assert decide(described(*facts), request) is decision, facts


def test_I9_only_an_attempt_in_progress_holds_a_record_and_a_live_lease_is_never_expired():
    left = {"no": None, "live": 1.0, "ends now": None, "lapsed": None}
    for lease, seconds in left.items():
        assert described("IN_PROGRESS", lease, "later", "same").lease_left == seconds
    for state in ("COMPLETED", "FAILED", "RELEASED"):
        ended = described(state, "live", "later", "same")
        assert (ended.live, ended.lease_left) == (False, None)
    assert not described("IN_PROGRESS", "live", "passed", "same").expired
    assert described("IN_PROGRESS", "lapsed", "passed", "same").expired
