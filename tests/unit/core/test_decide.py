"""`decide`: what a record means to an attempt that comes upon it, as one table."""

from __future__ import annotations

import itertools
import uuid
from datetime import datetime, timedelta, timezone

import pytest

from django_idempotency.claims import ClaimRequest, Decision, decide
from django_idempotency.records import Record, State

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
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

COMBINATIONS = list(
    itertools.product(
        [state.value for state in State], LEASES, EXPIRIES, FINGERPRINTS, ["take_over", "refuse"]
    )
)


def meets(combination, conditions):
    return all(
        value in condition.split("|") or not condition
        for value, condition in zip(combination, conditions, strict=True)
    )


def record(state, lease, expires, fingerprint):
    return Record(
        record_id=uuid.UUID(int=1),
        scope="s",
        key="k",
        operation="",
        fingerprint=FINGERPRINTS[fingerprint],
        state=State(state),
        epoch=1,
        token=uuid.UUID(int=2),
        lease_until=LEASES[lease],
        created_at=PAST,
        updated_at=PAST,
        expires_at=EXPIRIES[expires],
        attempts=1,
        result=b"",
        error="",
        now=NOW,
    )


def request(on_stale="take_over", fingerprints=(MINE,)):
    return ClaimRequest(uuid.UUID(int=1), "s", "k", fingerprints=fingerprints, on_stale=on_stale)


@pytest.mark.parametrize("line", TABLE, ids=lambda line: " ".join(filter(None, line[:-1])))
def test_decide(line):
    *conditions, decision = line
    met = [combination for combination in COMBINATIONS if meets(combination, conditions)]
    decided = {decide(record(*described), request(on_stale)) for *described, on_stale in met}
    assert decided == {decision}


def test_each_combination_is_met_by_one_line():
    times = {sum(meets(it, line[:-1]) for line in TABLE) for it in COMBINATIONS}
    assert (len(COMBINATIONS), times) == (384, {1})


def test_R47_any_of_the_fingerprints_is_the_same_request():
    completed = record("COMPLETED", "no", "later", "same")
    assert decide(completed, request(fingerprints=(THEIRS, MINE))) is REPLAY
    assert decide(completed, request(fingerprints=(THEIRS,))) is MISMATCH


@pytest.mark.parametrize(
    ("lease", "left"), [("no", None), ("live", 1.0), ("ends now", None), ("lapsed", None)]
)
def test_seconds_left_of_a_lease(lease, left):
    assert record("IN_PROGRESS", lease, "later", "same").lease_left == left


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "RELEASED"])
def test_only_an_attempt_in_progress_holds_a_record(state):
    assert not record(state, "live", "later", "same").live
    assert record(state, "live", "later", "same").lease_left is None


def test_a_live_lease_is_never_expired():
    assert not record("IN_PROGRESS", "live", "passed", "same").expired
    assert record("IN_PROGRESS", "lapsed", "passed", "same").expired


def test_lifetime_of_a_claim_covers_the_longest_work():
    day, hour = timedelta(days=1), timedelta(hours=1)
    identifier = uuid.UUID(int=1)
    assert ClaimRequest(identifier, "s", "k", retention=day, max_duration=hour).lifetime == day
    short = ClaimRequest(identifier, "s", "k", retention=hour, max_duration=day, lease=hour)
    assert short.lifetime == day + hour
