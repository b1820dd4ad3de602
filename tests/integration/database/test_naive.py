"""The tests of the interleavings can fail: each naive statement is found out by one of them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.db import (
    DataError,
    NotSupportedError,
    ProgrammingError,
    connection,
    transaction,
)

from django_idempotency.engine import Engine
from django_idempotency.exceptions import IdempotencyError
from tests.integration.database import (
    claims,
    naive,
    test_fence,
    test_reclaims,
    test_single,
    test_single_work,
)
from tests.integration.database.claims import claim_request, operation, packed, state_of, won, work
from tests.services import current_leg

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16", "sqlite"),
]

FOUND_OUT_ON_BOTH = [
    (
        "reclaim by epoch and token",
        test_reclaims.test_I3_R66_owner_completes_between_look_and_reclaim,
    ),
    ("reclaim by epoch and token", test_reclaims.test_I1_owner_renews_between_look_and_reclaim),
    ("reclaim by state", test_reclaims.test_I1_another_takes_over_between_look_and_reclaim),
    (
        "reclaim by state",
        partial(
            test_reclaims.test_I6_I11_another_asks_for_another_thing_between_look_and_reclaim,
            before=claims.expired,
        ),
    ),
    (
        "reclaim that leaves what it did not read",
        test_reclaims.test_I2_owner_fails_between_look_and_reclaim,
    ),
    (
        "reclaim that leaves what it did not read",
        test_reclaims.test_I6_owner_releases_between_look_and_reclaim,
    ),
    ("complete without the fence", test_fence.test_R66_I7_late_completion_is_refused),
    (
        "complete without the fence",
        test_fence.test_R66_I3_late_completion_leaves_the_result_of_the_owner,
    ),
    (
        "complete by the epoch",
        partial(
            test_fence.test_R68_proof_is_the_epoch_and_the_token, end="complete", another="token"
        ),
    ),
    (
        "complete by the token",
        partial(
            test_fence.test_R68_proof_is_the_epoch_and_the_token, end="complete", another="epoch"
        ),
    ),
    (
        "complete in any state",
        partial(test_fence.test_I13_completion_after_the_own_ending_is_refused, end="fail"),
    ),
    (
        "fail without the fence",
        partial(test_fence.test_R67_I7_late_failure_touches_nothing, completed=False),
    ),
    (
        "fail without the fence",
        partial(test_fence.test_R67_I7_late_failure_touches_nothing, completed=True),
    ),
    ("fail in any state", test_fence.test_I3_failure_after_the_own_completion_touches_nothing),
    (
        "release without the fence",
        partial(test_fence.test_R67_I7_late_release_touches_nothing, completed=False),
    ),
    (
        "release without the fence",
        partial(test_fence.test_R67_I7_late_release_touches_nothing, completed=True),
    ),
    ("release in any state", test_fence.test_I3_release_after_the_own_completion_touches_nothing),
    ("renew without the fence", test_fence.test_R68_I7_late_renewal_is_refused),
    ("renew in any state", test_fence.test_renewal_after_the_own_ending_is_refused),
    (
        "sweep by expiry alone",
        test_reclaims.test_I9_R75_sweep_leaves_a_live_lease_beyond_its_expiry,
    ),
]
FOUND_OUT_ON_POSTGRESQL = [
    ("one try", test_reclaims.test_R76_swept_between_conflict_and_look),
    ("one round", test_reclaims.test_R76_row_that_a_sweep_holds_is_no_conflict),
    ("complete without the fence", test_fence.test_R66_I7_late_work_is_rolled_back),
    (
        "fail without the fence",
        test_fence.test_R67_late_failure_of_work_leaves_the_result_of_the_owner,
    ),
    (
        "sweep that looks anew for each record",
        test_reclaims.test_sweep_takes_no_more_than_its_limit,
    ),
    (
        "sweep that joins what it limits",
        test_reclaims.test_sweep_looks_for_expired_records_once_however_it_is_planned,
    ),
    ("sweep by ids", test_reclaims.test_I9_R75_sweep_against_a_reclaim_that_commits_meanwhile),
    (
        "reclaim that waits",
        partial(
            test_reclaims.test_claim_does_not_wait_for_an_owner_between_completion_and_commit,
            before=claims.lapsed,
        ),
    ),
    (
        "claim that lets the index find the row",
        partial(
            test_reclaims.test_claim_does_not_wait_for_an_owner_between_completion_and_commit,
            before=claims.live,
        ),
    ),
    (
        "renew that waits",
        test_reclaims.test_renewal_does_not_wait_for_an_owner_between_completion_and_commit,
    ),
    (
        "claim without the lock",
        test_reclaims.test_claim_of_a_new_key_does_not_wait_for_an_uncommitted_claim,
    ),
    (
        "claim without the lock",
        partial(
            test_single.test_R49_R53_duplicate_is_told_at_once_while_the_work_runs, mode="joined"
        ),
    ),
    (
        "claim without the lock",
        partial(
            test_single.test_R49_duplicate_never_waits_for_the_uncommitted_completion,
            mode="separate",
            before=claims.absent,
        ),
    ),
    (
        "reclaim without the lock",
        partial(
            test_single.test_R49_duplicate_does_not_claim_the_record_that_single_found,
            before=claims.failed,
        ),
    ),
    ("single asks for the lock alone", test_single.test_R26_two_replays_at_once_are_both_answered),
    (
        "single always takes the lock",
        test_single.test_a_replay_keeps_nobody_from_the_key_once_it_has_expired,
    ),
    (
        "single without a second look",
        test_single.test_I5_record_that_commits_between_the_snapshot_and_the_lock_is_replayed,
    ),
    (
        "a lock on the record id alone",
        partial(test_single.test_I10_R53_keys_of_two_schemas_do_not_meet, mode="joined"),
    ),
    (
        "single completes by epoch and token",
        test_single.test_I5_stalled_owner_completes_while_single_runs,
    ),
    (
        "single completes by epoch, token and state",
        test_single.test_I1_I7_stalled_owner_renews_while_single_runs,
    ),
    (
        "single completes by an insert alone",
        partial(
            test_single_work.test_I2_runs_and_completes_over_a_record_that_may_be_claimed,
            before=claims.released,
        ),
    ),
    (
        "single without an insert after the update",
        test_single.test_R76_swept_between_look_and_completion,
    ),
    (
        "single whose own session passes the lock",
        partial(
            test_single_work.test_R49_nested_attempt_with_the_same_key_is_in_progress, mode="single"
        ),
    ),
    (
        "single without a savepoint",
        test_single.test_R57_answer_is_kept_after_the_savepoint_was_rolled_back,
    ),
]
FOUND_OUT_ON_SQLITE = [
    (
        "work that does not begin with a write",
        test_fence.test_work_holds_the_write_lock_before_it_reads,
    ),
]
ON_SQLITE = current_leg() == "sqlite"
FOUND_OUT = [*FOUND_OUT_ON_BOTH, *(FOUND_OUT_ON_SQLITE if ON_SQLITE else FOUND_OUT_ON_POSTGRESQL)]
MISTAKES = naive.SQLITE if ON_SQLITE else naive.POSTGRESQL


def name_of(value):
    """A mistake, or the test that finds it out, in a test's id."""
    if isinstance(value, partial):
        words = [getattr(word, "__name__", str(word)) for word in value.keywords.values()]
        return f"{value.func.__name__}-{'-'.join(words)}"
    return value if isinstance(value, str) else value.__name__


@pytest.mark.parametrize(("mistake", "test"), FOUND_OUT, ids=name_of)
def test_naive_statement_is_found_out(two, monkeypatch, mistake, test):
    naive.make(mistake, connection.vendor, monkeypatch)
    with pytest.raises((AssertionError, IdempotencyError, pytest.fail.Exception)) as found:
        test(two)
    # What is found out is the mistake, not that the statement cannot be executed.
    assert not isinstance(found.value.__cause__, (DataError, NotSupportedError, ProgrammingError))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_naive_statement_is_found_out_by_a_test(mistake):
    assert mistake in {found for found, _ in FOUND_OUT}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_naive_statement_works_while_nobody_interferes(two, monkeypatch, mistake):
    naive.make(mistake, connection.vendor, monkeypatch)
    engine = Engine(two.mine)
    for mode in ("single", "joined", "separate"):
        assert engine.run(operation(mode, transaction=mode), work(mode)).result == mode
        assert engine.run(operation(mode, transaction=mode), work(mode)).replayed
    assert claims.effects() == ["single", "joined", "separate"]
    for end in (claims.failed, claims.released, claims.lapsed):
        end(two.mine, claim_request(end.__name__))
        lease = won(two.mine.claim(claim_request(end.__name__)))
        assert two.mine.renew([lease], timedelta(seconds=60)) == {lease}
        two.mine.complete(lease, packed("second"), retention=claims.RETENTION)
        claims.expire(end.__name__)
    with transaction.atomic():
        assert two.mine.sweep(limit=10) == 3
    assert state_of(two.mine, "lapsed") is None
