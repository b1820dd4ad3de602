"""The tests of the interleavings can fail: each naive statement is found out by the one for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import DataError, NotSupportedError, ProgrammingError, connection

from django_idempotency.exceptions import IdempotencyError
from django_idempotency.stores.database import fresh
from tests.integration.database import (
    claims,
    naive,
    test_contract,
    test_fence,
    test_held_rows,
    test_reclaims,
    test_single,
    test_single_work,
)
from tests.integration.database.sessions import Two, hang_up_after
from tests.services import current_leg

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds that a naive statement may wait.
SOON = 0.3


def rule(name: str, **arguments: Any) -> Callable[[Two], None]:
    """The rule of the store contract, on the test's own session."""
    test = getattr(test_contract.TestDatabaseStore(), name)
    return lambda two: test(two.mine, **arguments)


def reclaimed(before: str, between: str, told: str) -> Callable[[Two], None]:
    name = "test_R66_I1_I3_I6_claim_repeats_its_predicate_as_it_writes"
    return rule(name, before=before, between=between, told=told)


reclaims, single, held = test_reclaims, test_single, test_held_rows.TestHeldRow()

FOUND_OUT_EVERYWHERE: dict[str, Callable[[Two], None]] = {
    "reclaim by token": reclaimed("lapsed", "completed by its owner", "COMPLETED"),
    "reclaim by state": reclaimed("lapsed", "claimed by another", "IN_PROGRESS"),
    "reclaim of what has expired, owner or not": reclaimed(
        "expired in progress", "renewed by its owner", "IN_PROGRESS"
    ),
    "reclaim that leaves the error": reclaimed("lapsed", "failed by its owner", "won"),
    "reclaim that leaves no fingerprint": reclaims.test_I6_owner_releases_between_look_and_reclaim,
    "complete without the fence": rule("test_R66_I7_late_completion_is_refused", loss="taken over"),
    "complete by the epoch": rule(
        "test_R68_proof_is_the_epoch_and_the_token", half="token", write="complete"
    ),
    "complete by the token": rule(
        "test_R68_proof_is_the_epoch_and_the_token", half="epoch", write="complete"
    ),
    "complete in any state": rule(
        "test_I7_lease_that_was_given_up_completes_nothing", ending="failed"
    ),
    "fail without the fence": rule("test_R67_I7_late_failure_changes_nothing", loss="taken over"),
    "fail in any state": rule(
        "test_I3_ended_lease_is_not_ended_otherwise", first="completed", second="failed"
    ),
    "release without the fence": rule(
        "test_R67_I7_late_release_changes_nothing", loss="taken over"
    ),
    "release in any state": rule(
        "test_I3_ended_lease_is_not_ended_otherwise", first="completed", second="released"
    ),
}
RENEW_IN_ANY_STATE = rule("test_R68_ended_lease_is_not_renewed", ending="failed")
SWEEP_BY_EXPIRY = rule("test_I9_R75_sweep_leaves_a_live_lease_beyond_the_expiry")

FOUND_OUT_ON: dict[str, dict[str, Callable[[Two], None]]] = {
    "postgresql": {
        "one try": reclaims.test_R76_swept_between_conflict_and_look,
        "one round": reclaims.test_R76_row_that_a_sweep_holds_is_no_conflict,
        "claim without the lock": (
            reclaims.test_claim_of_a_new_key_does_not_wait_for_an_uncommitted_claim
        ),
        "claim that lets the index find the row": partial(
            reclaims.test_claim_does_not_wait_for_an_owner_between_completion_and_commit,
            before=claims.live,
        ),
        "reclaim without the lock": partial(
            single.test_R49_R53_duplicate_is_told_at_once_while_the_work_runs,
            mode="joined",
            before=claims.failed,
        ),
        "reclaim that waits": partial(
            held.test_R49_claim_is_told_in_progress_at_once, before=claims.lapsed
        ),
        "renew without the fence": rule("test_R68_I7_late_renewal_is_refused", loss="taken over"),
        "renew in any state": RENEW_IN_ANY_STATE,
        "renew that waits": held.test_R69_renewal_counts_it_as_held_and_renews_the_others,
        "resolve that waits": held.test_operator_finds_it_busy,
        "resolve without the lock": held.test_operator_finds_what_single_has_claimed_busy,
        "sweep that waits": held.test_I9_R75_sweep_leaves_it_and_takes_the_rest,
        "sweep by ids": reclaims.test_I9_R75_sweep_against_a_reclaim_that_commits_meanwhile,
        "sweep by expiry alone": SWEEP_BY_EXPIRY,
        "sweep that looks anew for each record": rule("test_sweep_takes_no_more_than_its_limit"),
        "sweep that joins what it limits": (
            reclaims.test_sweep_looks_for_expired_records_once_however_it_is_planned
        ),
        "single asks for the lock alone": single.test_R26_two_replays_at_once_are_both_answered,
        "single always takes the lock": (
            single.test_a_replay_keeps_nobody_from_the_key_once_it_has_expired
        ),
        "single completes by token": single.test_I5_stalled_owner_completes_while_single_runs,
        "single completes by token and state": partial(
            single.test_I1_I7_stalled_owner_renews_while_single_runs, before=claims.lapsed
        ),
        "single completes by an insert alone": partial(
            test_single_work.test_I2_runs_and_completes_over_a_record_that_may_be_claimed,
            before=claims.released,
        ),
        "a lock on the record id alone": partial(
            single.test_I10_R53_keys_of_two_schemas_do_not_meet, mode="joined"
        ),
        "single without a second look": (
            single.test_I5_record_that_commits_between_the_snapshot_and_the_lock_is_replayed
        ),
        "single without an insert after the update": (
            single.test_R76_swept_between_look_and_completion
        ),
        "single whose own session passes the lock": partial(
            test_single_work.test_R49_nested_attempt_with_the_same_key_is_in_progress,
            mode="single",
        ),
        "single without a savepoint": (
            single.test_R57_answer_is_kept_after_the_savepoint_was_rolled_back
        ),
    },
    "sqlite": {
        "renew in any state": RENEW_IN_ANY_STATE,
        "sweep by expiry alone": SWEEP_BY_EXPIRY,
        "work that does not begin with a write": (
            test_fence.test_work_holds_the_write_lock_before_it_reads
        ),
    },
    "mysql": {
        "sweep by expiry alone": SWEEP_BY_EXPIRY,
        "reclaim that waits": partial(
            held.test_R49_claim_is_told_in_progress_at_once, before=claims.lapsed
        ),
        "renew that waits": held.test_R69_renewal_counts_it_as_held_and_renews_the_others,
        "resolve that waits": held.test_operator_finds_it_busy,
        "sweep that waits": held.test_I9_R75_sweep_leaves_it_and_takes_the_rest,
    },
}
VENDOR = {"sqlite": "sqlite", "mariadb": "mysql"}.get(current_leg(), "postgresql")
FOUND_OUT = {**FOUND_OUT_EVERYWHERE, **FOUND_OUT_ON[VENDOR]}


@pytest.mark.parametrize("mistake", naive.MISTAKES[VENDOR])
def test_naive_statement_is_found_out(two, monkeypatch, mistake):
    naive.MISTAKES[VENDOR][mistake](monkeypatch)
    monkeypatch.setattr(fresh, "ANSWER_SECONDS", 1)
    hang_up_after(SOON)
    two.other(hang_up_after, SOON)
    with pytest.raises((AssertionError, IdempotencyError, pytest.fail.Exception)) as found:
        FOUND_OUT[mistake](two)
    # What is found out is the mistake, not that the statement cannot be executed.
    assert not isinstance(found.value.__cause__, (DataError, NotSupportedError, ProgrammingError))
    assert connection.vendor == VENDOR
