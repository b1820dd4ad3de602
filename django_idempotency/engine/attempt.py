"""One attempt at an operation, from its claim to its outcome."""

from __future__ import annotations

import enum
import logging
import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, NoReturn
from uuid import UUID

from django_idempotency import codecs, keys
from django_idempotency.callables import refuse_lazy
from django_idempotency.claims import ClaimAgain, ClaimRequest, Decision, decide
from django_idempotency.context import Running
from django_idempotency.engine.transactions import CommitHooks, OuterTransaction
from django_idempotency.exceptions import (
    FingerprintMismatch,
    IdempotencyError,
    InProgress,
    LeaseLost,
    ResultTooLarge,
    StoreError,
    TransactionOpen,
    WorkRolledBack,
)
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.leases import Lease
from django_idempotency.logs import log_outcome, log_refusal, log_store_error
from django_idempotency.policy import Policy
from django_idempotency.records import Outcome, Record
from django_idempotency.stores.base import BaseStore

__all__ = [
    "Attempt",
    "Operation",
    "Phase",
    "RollBack",
    "refuse_rollback",
]

logger = logging.getLogger("django_idempotency")


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
    #: A result that cannot be stored is no error: the record is completed without it (R62).
    unstorable_ok: bool = False
    #: How long to wait for the answer of an attempt in progress; 0 in a caller's transaction.
    wait: timedelta = timedelta(0)
    #: The transaction around, which must commit before a store that cannot join completes.
    outer: OuterTransaction | None = None
    #: The on_commit hooks of the caller's transactions, for which the attempt is still `current`.
    commit_hooks: CommitHooks | None = None

    def request(self) -> ClaimRequest:
        """Return the claim of a new attempt, with a token of its own."""
        return ClaimRequest(
            record_id=self.record_id,
            scope=keys.bounded(self.scope),
            key=keys.bounded(self.key),
            operation=keys.bounded(self.name),
            transaction=self.transaction,
            fingerprints=self.fingerprint.forms,
            digest=self.fingerprint.digest,
            lease=self.policy.attempt_lease(),
            retention=self.policy.retention,
            max_duration=self.policy.max_duration,
            on_stale=self.policy.on_stale,
        )


class RollBack(Exception):
    """
    Raised by an adapter: roll the work back, end the lease, and answer with `result`.

    Or pass `error` on, unchanged. The verdict "keep" keeps the result without the work.
    """

    def __init__(
        self, verdict: str, result: Any = None, error: BaseException | None = None
    ) -> None:
        super().__init__(verdict)
        self.error = error
        #: "release", "fail" or "keep".
        self.verdict = verdict
        self.result = result


def refuse_rollback(
    of: str, result: Any, *, deliberate: bool, succeeded: bool = True, verdict: str = "fail"
) -> NoReturn:
    """
    End work that returned `result`, and whose transaction can only be rolled back (R91, R57).

    Raises WorkRolledBack for a success, unless the rollback is deliberate; RollBack with
    the result otherwise.
    """
    cause = "a database error was swallowed outside of an inner atomic()"
    if succeeded and not deliberate:
        logger.error("The work of %s succeeded, and can only be rolled back: %s.", of, cause)
        raise WorkRolledBack
    if not deliberate:
        logger.warning("The work of %s is refused, and is rolled back: %s.", of, cause)
    raise RollBack("release" if verdict == "release" else "fail", result)


class Phase(enum.Enum):
    """How far an attempt has come: it tells whose exception it is that ends the block."""

    OPENING = "opening"
    WORKING = "working"
    COMPLETING = "completing"
    NOT_KEPT = "not kept"


class Attempt(Running):
    """One attempt, from its claim to its outcome: what the block of `Engine.attempt` works with."""

    def __init__(self, operation: Operation, store: BaseStore) -> None:
        super().__init__(operation.record_id, operation.scope, operation.key)
        self.operation = operation
        self.store = store
        self.request = operation.request()
        self._outcome: Outcome | None = None
        #: The record that a replay answers from.
        self.record: Record | None = None
        self.phase = Phase.OPENING
        #: `complete` was called, with this result.
        self.has_result = False
        self.work_result: Any = None
        #: What becomes of the record where the work commits: "keep", "release" or "fail" (R57).
        self.verdict = "keep"
        #: The work ended as a success; False for a refusal that it returned.
        self.succeeded = True
        #: The work was rolled back, and whether it had called set_rollback(True) for that (R91).
        self.rolled_back = False
        self.rollback_is_deliberate = False
        #: The envelope to keep; for an answer made of an exception it is kept without the work.
        self.payload = b""
        self.kept_error = False
        #: "failed" or "released", where the lease was ended without an answer to keep.
        self.ending = ""
        #: The transaction of work and completion is known to have committed.
        self.committed = False

    def compare(self, record: Record) -> bool:
        """
        Return whether the claim is to be sent again, with the record's fingerprint as its own.

        That is so where version 1 of the algorithm made it of the same request, and where the
        secret that made it is gone (R47): a mismatch would invite a second charge.
        """
        request, stored = self.request, record.fingerprint
        if record.expired or stored is None or stored in request.fingerprints:
            return False
        if record.operation not in ("", request.operation):
            return False
        digest = request.digest
        if stored in self.operation.fingerprint.version_1:
            digest = b""  # derived keys were made of the record id alone
        elif self.operation.fingerprint.lacks_key_of(stored):
            logger.warning(
                "Record %s was written under a secret that is gone, so that this request cannot be "
                "compared with it: they count as equal.",
                keys.short(request.record_id),
            )
        else:
            return False
        self.request = replace(request, fingerprints=(*request.fingerprints, stored), digest=digest)
        return True

    def is_answered_by(self, record: Record) -> bool:
        """Whether a record that was only read leaves this attempt nothing to claim."""
        self.compare(record)
        return decide(record, self.request) is not Decision.CLAIM_AGAIN

    def replayable(self, record: Record) -> Record:
        """Return the record if it is to be replayed; raise what it means otherwise."""
        if self.compare(record):
            raise ClaimAgain
        decision = decide(record, self.request)
        if decision is Decision.REPLAY:
            return record
        if decision is Decision.MISMATCH:
            raise FingerprintMismatch
        if decision is Decision.CLAIM_AGAIN:
            raise ClaimAgain
        stale = decision is Decision.STALE
        raise InProgress(record=record, retry_after=_retry_after(record), stale=stale)

    @property
    def lease(self) -> Lease:
        """The lease of this attempt; RuntimeError for a replay, which has none."""
        if self.held is None:
            raise RuntimeError("A replay has no lease: nothing is to be run.")
        return self.held

    @property
    def replayed(self) -> bool:
        """Whether the result comes from the record, so that nothing is to be run."""
        return self.held is None

    def __enter__(self) -> None:
        """
        Make this attempt the innermost one, and its lease `current()`.

        Until the on_commit hooks of its transaction have run, be it the caller's. Whatever it opens
        on a connection is known by it: see `stores.database`.
        """
        self.push()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.pop()
        if exc_value is not None:
            self._log_error(exc_value)
            return
        if self.operation.commit_hooks is not None:
            self.operation.commit_hooks.belong_to(self)
        self.log_end()

    def won(self, lease: Lease) -> None:
        """Take the lease that the claim gave."""
        transact_item = self.store.transact_item
        policy, codec = self.operation.policy, self.operation.codec

        def completion(result: Any) -> Any:
            if self.operation.outer is not None:
                raise TransactionOpen(
                    "transact_item() would complete before the transaction that is open here "
                    "commits. Call it outside atomic()."
                )
            try:
                payload = codecs.pack(codec, result, max_bytes=policy.max_result_bytes)
                return transact_item(lease, payload, retention=policy.retention)
            except (ResultTooLarge, TypeError, ValueError) as error:
                payload = self._without_result(error)
                return transact_item(lease, payload, retention=policy.retention)

        lease.completion = completion
        self.held = lease
        if lease.takeover:
            self._log("taken over")

    def complete(self, result: Any = None) -> None:
        """Give the result of the work; it is kept when the block ends."""
        if self.replayed:
            raise RuntimeError("This attempt is a replay: it has its result already.")
        if self.phase in (Phase.COMPLETING, Phase.NOT_KEPT):
            raise RuntimeError("The block of this attempt has ended: complete() comes too late.")
        self.work_result = refuse_lazy("The work", result)
        self.has_result = True

    def refuse_rollback(self, result: Any, *, deliberate: bool) -> NoReturn:
        """See the function."""
        self.rollback_is_deliberate = deliberate
        name = f"record {keys.short(self.lease.record_id)}"
        refuse_rollback(
            name, result, deliberate=deliberate, succeeded=self.succeeded, verdict=self.verdict
        )

    @property
    def concluded(self) -> bool:
        """Whether there is an outcome."""
        return self._outcome is not None

    @property
    def outcome(self) -> Outcome:
        """What became of the attempt; RuntimeError before its block has ended."""
        if self._outcome is None:
            raise RuntimeError("The attempt has no outcome before its block has ended.")
        return self._outcome

    @property
    def result(self) -> Any:
        """The result of the work, this attempt's or the stored one."""
        return self.outcome.result

    def replay(self, record: Record) -> None:
        """Answer from the record."""
        self.held = None
        self.record = record
        self._outcome = Outcome(
            result=self._unpacked(record.result),
            replayed=True,
            record_id=record.record_id,
            fencing_token=record.epoch,
            expires_at=record.expires_at,
        )

    def conclude(self, result: Any, *, stored: bool) -> None:
        """Answer with the result of this attempt's own work."""
        self._outcome = Outcome(
            result=result,
            replayed=False,
            record_id=self.lease.record_id,
            fencing_token=self.lease.fencing_token,
            stored=stored,
        )

    def pack(self, result: Any) -> None:
        """
        Make `result` the outcome, and its envelope the payload to keep.

        Raises ResultTooLarge, or what the codec raises, for a result that cannot be stored, unless
        the operation may be completed without its result.
        """
        operation = self.operation
        try:
            self.payload = codecs.pack(
                operation.codec, result, max_bytes=operation.policy.max_result_bytes
            )
        except (ResultTooLarge, TypeError, ValueError) as error:
            self.conclude(result, stored=False)
            self.go_without_result(error)
            return
        if not operation.codec.exact:
            result = self._unpacked(self.payload)
        self.conclude(result, stored=True)

    def _unpacked(self, envelope: bytes | None) -> Any:
        operation = self.operation
        most = operation.policy.max_result_bytes
        return codecs.unpack(operation.codec, envelope, max_bytes=most)

    def go_without_result(self, error: Exception) -> None:
        """Be completed without the result; raise `error` where that is not allowed (R62)."""
        self.payload = self._without_result(error)
        self.conclude(self.outcome.result, stored=False)

    def _without_result(self, error: Exception) -> bytes:
        """Return what is kept in the place of a result; raise `error` where it must be kept."""
        operation = self.operation
        if not operation.unstorable_ok:
            raise error
        logger.warning(
            "Record %s is completed without its result: %s",
            keys.short(operation.record_id),
            type(error).__name__,
        )
        return codecs.unavailable(operation.codec)

    def kept_until(self, expires_at: datetime) -> None:
        """Note when the record expires that holds the outcome."""
        self._outcome = replace(self.outcome, expires_at=expires_at)

    def note_commit(self) -> None:
        """Note that the transaction of the work has committed."""
        self.committed = True

    # What the log says.

    def log_end(self) -> None:
        """Log what became of this attempt, unless a commit of the caller's is still to decide."""
        if not logger.isEnabledFor(logging.INFO):
            return
        kept = self.outcome.expires_at is not None
        if self.replayed or self.ending:
            self._log("replayed" if self.replayed else self.ending)
        elif kept or (self.outcome.stored and self.operation.outer is None):
            self._log("completed")

    def _log_error(self, error: BaseException) -> None:
        """Log why there is no answer: an error of the store with its cause, others by one word."""
        working = self.phase is Phase.WORKING
        if isinstance(error, StoreError) and not working:
            self._log_store_error(error)
        elif self.replayed:
            if isinstance(error, IdempotencyError):
                log_refusal(self.store.alias, self.request.operation, error, self.request.record_id)
        elif isinstance(error, LeaseLost) and (self.lease.lost or not working):
            if error.gone:  # no other attempt took over: it is the store that lost the record
                self._log_store_error(StoreError(str(error)))
            else:
                self._log("lease lost")
        else:  # without such an ending a commit stands: it is an on_commit hook that raised
            self._log(self.ending or ("completed" if self.committed else "failed"))

    def _log_store_error(self, error: StoreError) -> None:
        request = self.request
        log_store_error(self.store.alias, request.operation, error, request.record_id, request.key)

    def _log(self, outcome: str) -> None:
        log_outcome(self.store.alias, self.request.operation, outcome, self.request.record_id)


def _retry_after(record: Record) -> int:
    """Return seconds: as long as the attempt has been running, within its lease, 1 to 30 (R49)."""
    if record.running_for is None or record.lease_left is None:
        return 1
    return min(max(math.ceil(min(record.running_for, record.lease_left)), 1), 30)
