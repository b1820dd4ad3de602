"""What is meant to differ between a guarded project and an unguarded one, each with its rule."""

from __future__ import annotations

from dataclasses import replace

from tests.proof.pairs.features import RETRYING, Case
from tests.proof.pairs.features_of_tasks import TaskCase

__all__ = ["Expected", "ExpectedOfTask"]

#: Fields of the guard's own, and those that a project's middleware makes of a session's use.
OURS = frozenset(
    (
        *("Idempotency-Expires", "Idempotency-Stored", "Idempotency-Replayed"),
        *("Cache-Control", "Content-Length", "Vary"),
    )
)
#: Answers that the guard keeps (R55), and those whose work it rolls back where it can (R57).
KEPT = ("json", "template", "file", "redirect", "refused", "raised")
UNDONE = ("raised", "error", "exception")


class Expected:
    """What is to be expected of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @property
    def mode(self) -> str:
        """The mode that the case's attempts commit by."""
        case = self.case
        if case.fail_open == "down":
            return "separate"
        if case.mode != "default":
            return case.mode
        if self.is_called_within:  # another store completes after its commit (R94)
            return "single" if case.store == "database" else "separate"
        joins = case.store in ("database", "other")
        if case.is_async or not joins:
            return "separate"
        if case.guard == "middleware" and not self.has_atomic_requests:  # R90
            return "separate"
        return "joined"

    @property
    def has_atomic_requests(self) -> bool:
        """Whether Django, or the guard in its place, opens a transaction: not for steps (T17)."""
        return self.case.transactions == "atomic_requests" and not self.has_steps

    @property
    def has_steps(self) -> bool:
        """Whether the work is done in steps: once, however often the view runs (T1)."""
        return self.case.mode == "steps"

    @property
    def is_uncertain(self) -> bool:
        """Whether a retry is refused after a death in the call, which nobody may repeat (T12)."""
        return self.case.uncertain == "refuse"

    @property
    def bare(self) -> Case:
        """The case of the unguarded project: it has no transaction that steps do not have (T17)."""
        atomic = self.case.transactions == "atomic_requests"
        return replace(self.case, transactions="none") if self.has_steps and atomic else self.case

    @property
    def denial(self) -> int | None:
        """The status of each request where no step runs: a key and a store are needed (T17)."""
        if not self.has_steps or self.is_guarded:
            return None
        return 400 if self.case.key == "none" else 503

    @property
    def is_called_within(self) -> bool:
        """Whether the caller has opened a transaction."""
        return self.case.transactions == "caller"

    @property
    def is_guarded(self) -> bool:
        """Whether the request runs under a record."""
        return self.case.key != "none" and self.case.fail_open != "down"

    @property
    def is_left_to_django(self) -> bool:
        """Whether the middleware has no part in the request (R90)."""
        joins = self.case.mode in ("joined", "single")
        return self.case.guard == "middleware" and self.case.key == "none" and not joins

    @property
    def has_block(self) -> bool:
        """Whether the guard opens a transaction on the database of the work (R90)."""
        case = self.case
        around = self.has_atomic_requests or (self.is_called_within and case.key != "none")
        if case.guard == "middleware" and case.mode == "default" and not around:
            return False
        return self.mode in ("joined", "single") and case.store == "database"

    @property
    def is_rolled_back(self) -> bool:
        """Whether the guard takes back what the unguarded view would leave (R57)."""
        if self.case.answer not in UNDONE or self.is_left_to_django:
            return False
        return self.has_block or self.has_atomic_requests

    @property
    def is_undone_by_caller(self) -> bool:
        """Whether an exception passes through the caller's own transaction."""
        case = self.case
        passes = case.answer == "exception" or (case.answer == "raised" and case.is_plain)
        return self.is_called_within and case.guard != "middleware" and passes

    @property
    def rows(self) -> list[str]:
        """The rows that are left of work that is rolled back: those of another coroutine."""
        return ["of the neighbor"] if self.case.has_neighbor else []

    @property
    def leaves_row(self) -> bool:
        """Whether a row of the work is there in the end."""
        return not (self.is_rolled_back or self.is_undone_by_caller)

    @property
    def leaves_row_of_dead(self) -> bool:
        """Whether a row of work is there whose process has died before the completion."""
        if self.is_called_within:  # which has committed before a completion that waits for it (R94)
            return not self.has_block and (self.is_kept or self.case.answer == "stream")
        return not (self.has_block or self.is_rolled_back or self.has_steps)

    @property
    def is_session_restored(self) -> bool:
        """Whether the session is as it was, whatever database was rolled back (R92)."""
        joins = self.mode in ("joined", "single") and not self.is_left_to_django
        return self.is_rolled_back or (joins and self.case.answer in UNDONE)

    @property
    def waits(self) -> bool:
        """Whether a duplicate waits: not within a transaction of its caller (R51)."""
        return self.case.wait == "yes" and not self.is_called_within

    @property
    def is_renewed(self) -> bool:
        """Whether the lease of the work is renewed (R69): not where a transaction is the lease."""
        case = self.case
        # There a renewal would make the completion a serialization failure.
        snapshot = case.isolation == "repeatable read" and case.store == "database"
        return self.mode == "separate" or (self.mode != "single" and not snapshot)

    @property
    def refused_modes(self) -> list[str]:
        """The modes that are refused within a caller's transaction: they commit on their own."""
        if not self.is_called_within or not self.is_guarded:
            return []
        if self.case.store == "database":
            modes = ["joined", "separate"]
        elif self.case.store == "other":
            modes = ["joined", "single", "separate"]
        else:
            modes = ["separate"]
        return modes if self.case.guard == "middleware" else [*modes, "steps"]

    @property
    def is_replayed(self) -> bool:
        """Whether a duplicate gets the first answer."""
        return self.is_guarded and self.is_kept

    @property
    def is_kept(self) -> bool:
        """Whether the first answer is kept."""
        case = self.case
        if case.answer == "raised" and case.guard != "middleware":
            return case.is_rest  # a 409; elsewhere a 404 (R55)
        return case.answer in KEPT and case.answer != "raised"

    @property
    def is_done_without_answer(self) -> bool:
        """Whether a duplicate is told that the work was done, and no more (R62)."""
        return self.is_guarded and self.case.answer == "stream"

    @property
    def is_told_twice(self) -> bool:
        """Whether Django answers an exception twice: for a callable `keep`, and once more."""
        case = self.case
        asked = case.answer in ("raised", "exception") or case.middleware in RETRYING
        return case.keep == "queries" and asked

    @property
    def refusal(self) -> int | None:
        """The status of a duplicate that is another request, or whose record cannot be read."""
        refusals = {"renamed": 422, "charset": 422, "damaged": 503}
        return refusals.get(self.case.later) if self.is_guarded and self.has_owner else None

    @property
    def is_session_lost(self) -> bool:
        """Whether a new session key is of no use: the rollback was on another database than it."""
        joins = self.mode in ("joined", "single") and not self.is_left_to_django
        elsewhere = joins and self.case.store == "other" and self.case.answer in UNDONE
        return elsewhere and self.case.session in ("rotate", "flush")

    @property
    def may_be_interrupted(self) -> bool:
        """Whether Django may answer 400, since it saves a session that is lost."""
        # The scope of a session writes into it.
        is_saved = self.case.scope == "session" or self.case.middleware in ("modified", "sliding")
        return self.is_session_lost and is_saved

    @property
    def is_interrupted_without_guard(self) -> bool:
        """Whether Django answers 400, since the session's new key is rolled back with the view."""
        case = self.case
        is_undone = self.has_atomic_requests or (self.is_undone_by_caller and self.has_block)
        return is_undone and case.session == "rotate" and case.answer == "raised"

    @property
    def has_owner(self) -> bool:
        """Whether a request after the first one still has a scope (R21)."""
        if self.case.scope == "anyone" or self.is_session_restored:
            return True
        # Django saves no session after a 5xx, and a new key of it is lost then.
        lost = self.case.session == "rotate" and self.case.answer in ("error", "exception")
        return self.case.session != "flush" and (not lost or self.is_undone_by_caller)


class ExpectedOfTask:
    """What is to be expected of a case of a task."""

    def __init__(self, case: TaskCase) -> None:
        self.case = case

    @property
    def has_steps(self) -> bool:
        """Whether the work is done in a step, which is done once (T1)."""
        return self.case.mode == "steps"

    @property
    def is_uncertain(self) -> bool:
        """Whether each run fails after a death in the call, which nobody may repeat (T12)."""
        return self.case.uncertain == "refuse"

    @property
    def has_block(self) -> bool:
        """Whether the guard opens a transaction around the work (C11)."""
        return self.case.mode in ("joined", "single")

    @property
    def is_done_once(self) -> bool:
        """Whether an attempt that dies leaves no effect, or a step that is not done again."""
        return self.has_block or self.has_steps

    def effects(self, bare: list[str]) -> list[str]:
        """
        Return what is left of the effects of unguarded runs.

        In a transaction that is nothing of those that failed (C7), in steps that of the first (T1).
        """
        if self.has_steps:
            return bare[:1]
        if not self.has_block:
            return bare
        if self.case.result == "exception":
            return []
        return bare[-1:]

    @property
    def is_replayed(self) -> bool:
        """Whether a duplicate does not run (C4, C7)."""
        return self.case.result != "exception" or self.case.on_failed == "replay"

    @property
    def is_told_of_failure(self) -> bool:
        """Whether a duplicate gets a TaskFailed in place of the error (C7)."""
        return self.case.result == "exception"

    @property
    def met(self) -> str:
        """How a duplicate ends that comes while the first is at work (C6)."""
        ends = {"retry": "RETRY", "ignore": "IGNORED", "raise": "FAILURE", "wait": "FAILURE"}
        return ends[self.case.in_progress]

    @property
    def is_chord_counted_twice(self) -> bool:
        """Whether a duplicate that fails counts as the member of a chord that it is (C14)."""
        return self.case.call == "chord" and self.met == "FAILURE"
