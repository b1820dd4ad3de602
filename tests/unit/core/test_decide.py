"""`decide`: what a record means to an attempt that comes upon it, as one table."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta

from django_idempotency.claims import ClaimRequest, Decision, decide
from django_idempotency.records import State
from tests.unit.core.test_records import NOW, WHOLE

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
    """A record of tests/unit/core/test_records.py, in such a state."""
    times = {"created_at": PAST, "updated_at": PAST, "now": NOW}
    until = {"lease_until": LEASES[lease], "expires_at": EXPIRIES[expires]}
    prints = {"fingerprint": FINGERPRINTS[fingerprint]}
    return replace(WHOLE, state=State(state), **times, **until, **prints)


def request(on_stale="take_over", fingerprints=(MINE,)):
    return ClaimRequest(WHOLE.record_id, "s", "k", fingerprints=fingerprints, on_stale=on_stale)


def test_decide():
    """Each combination is met by one line."""
    for *conditions, decision in TABLE:
        met = [combination for combination in COMBINATIONS if meets(combination, conditions)]
        decided = {decide(record(*described), request(on_stale)) for *described, on_stale in met}
        assert decided == {decision}, conditions
    times = {sum(meets(it, line[:-1]) for line in TABLE) for it in COMBINATIONS}
    assert (len(COMBINATIONS), times) == (384, {1})


def test_R47_any_of_the_fingerprints_is_the_same_request():
    completed = record("COMPLETED", "no", "later", "same")
    assert decide(completed, request(fingerprints=(THEIRS, MINE))) is REPLAY
    assert decide(completed, request(fingerprints=(THEIRS,))) is MISMATCH


def test_I9_only_an_attempt_in_progress_holds_a_record_and_a_live_lease_is_never_expired():
    left = {"no": None, "live": 1.0, "ends now": None, "lapsed": None}
    for lease, seconds in left.items():
        assert record("IN_PROGRESS", lease, "later", "same").lease_left == seconds
    for state in ("COMPLETED", "FAILED", "RELEASED"):
        ended = record(state, "live", "later", "same")
        assert (ended.live, ended.lease_left) == (False, None)
    assert not record("IN_PROGRESS", "live", "passed", "same").expired
    assert record("IN_PROGRESS", "lapsed", "passed", "same").expired
