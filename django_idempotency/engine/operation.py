"""What is to be guarded, and how its work is rolled back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

from django_idempotency import codecs
from django_idempotency.engine.waiting import Waiter
from django_idempotency.exceptions import WorkRolledBack
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.observers import logger
from django_idempotency.policy import Policy
from django_idempotency.transactions.outer import CommitHooks, OuterTransaction


@dataclass(frozen=True)
class Operation:
    """One call to guard: whose key it is, what it asks for, and how it is to be guarded."""

    record_id: UUID
    scope: str = field(repr=False)
    key: str = field(repr=False)
    name: str
    fingerprint: Fingerprint
    policy: Policy
    codec: codecs.Codec
    #: "single", "joined" or "separate": the policy's choice, or what its absence means here.
    transaction: str = "separate"
    #: The aliases on which the work has transactions of its own, which commit before its record.
    aliases: Sequence[str] = ()
    #: False for work without a key: it has the same block, and no record (R90).
    recorded: bool = True
    #: A result that cannot be stored is no error: the record is completed without it (R62).
    unstorable_ok: bool = False
    #: How long to wait for the answer of an attempt in progress; 0 in a caller's transaction.
    wait: timedelta = timedelta(0)
    #: Whether a wait may close this thread's connections: nobody else uses their sessions.
    closes_connections: bool = False
    #: The transaction around, which must commit before a store that cannot join completes.
    outer: OuterTransaction | None = None
    #: The on_commit hooks of the caller's transactions, for which the attempt is still `current`.
    commit_hooks: CommitHooks | None = None
    #: The adapter decides whether a replay may be seen, and calls `Attempt.tell_replay`.
    checks_replay: bool = False
    #: Makes what the adapter waits with, in place of `wait`.
    make_waiter: Callable[[Operation], Waiter] | None = None
    #: What a line of the log calls it if it has no name.
    label: str = ""

    def waiter(self) -> Waiter:
        """Return what says how long an attempt waits for another."""
        if self.make_waiter is not None:
            return self.make_waiter(self)
        return Waiter(self.record_id, self.wait, self.policy.on_stale)


@dataclass(frozen=True)
class Verdict:
    """What an adapter says of a result that the work has returned, and whose work commits."""

    #: What becomes of the record: "keep" the result, "release" or "fail" it (R57).
    says: str = "keep"
    #: False for a refusal that the work returned.
    succeeded: bool = True


class RollBack(Exception):
    """
    Raised by an adapter: roll the work back, end the lease, and answer with `result`.

    Or pass `error` on, unchanged. The verdict "keep" keeps the result without the work.
    """

    def __init__(
        self,
        verdict: str,
        result: Any = None,
        error: BaseException | None = None,
        *,
        deliberate: bool = False,
    ) -> None:
        super().__init__(verdict)
        self.error = error
        #: "release", "fail" or "keep".
        self.verdict = verdict
        self.result = result
        #: The work itself has called ``set_rollback(True)`` (R91).
        self.deliberate = deliberate


def refuse_rollback(of: str, result: Any, verdict: Verdict, *, deliberate: bool) -> NoReturn:
    """
    End work that returned `result`, and whose transaction can only be rolled back (R91, R57).

    Raises WorkRolledBack for a success, unless the rollback is deliberate; RollBack with
    the result otherwise.
    """
    cause = (
        "a database error was swallowed outside of an inner atomic(), or a statement has ended its "
        "transaction"
    )
    if verdict.succeeded and not deliberate:
        logger.error("The work of %s succeeded, and can only be rolled back: %s.", of, cause)
        raise WorkRolledBack
    if not deliberate:
        logger.warning("The work of %s is refused, and is rolled back: %s.", of, cause)
    ends = "release" if verdict.says == "release" else "fail"
    raise RollBack(ends, result, deliberate=deliberate)
