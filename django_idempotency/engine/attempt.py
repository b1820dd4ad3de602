"""One attempt at an operation, from its claim to its outcome."""

from __future__ import annotations

import enum
import logging
import math
import time
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn

from asgiref.sync import sync_to_async

from django_idempotency import codecs, keys, signals
from django_idempotency.callables import refuse_lazy
from django_idempotency.claims import ClaimAgain, Decision, decide
from django_idempotency.codecs import encryption
from django_idempotency.context import Running
from django_idempotency.engine.cancellation import finish
from django_idempotency.engine.operation import Operation, refuse_rollback
from django_idempotency.engine.transactions import after_commit
from django_idempotency.exceptions import (
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    ResultTooLarge,
    StoreError,
    TransactionOpen,
)
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.leases import Lease
from django_idempotency.logs import tell_claim, tell_end, word_for
from django_idempotency.observers import logger
from django_idempotency.records import Outcome, Record
from django_idempotency.stores.base import BaseStore

__all__ = ["Attempt", "Phase"]


class Phase(enum.Enum):
    """How far an attempt has come: it tells whose exception it is that ends the block."""

    OPENING = "opening"
    WORKING = "working"
    COMPLETING = "completing"
    NOT_KEPT = "not kept"


class Attempt(Running):
    """One attempt, from its claim to its outcome: what the block of `attempt` works with."""

    def __init__(self, operation: Operation, store: BaseStore) -> None:
        super().__init__(operation.record_id, operation.scope, operation.key)
        self.operation = operation
        self.store = store
        self.request = operation.request()
        self.began = time.monotonic()
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
        #: The last envelope that was encrypted, and what became of it.
        self._encrypted = b"", b""
        self.kept_error = False
        #: "failed" or "released", where the lease was ended without an answer to keep; "lease lost"
        #: or "completed" where an error or a replay would hide it.
        self.ending = ""
        #: The work stands, and this is why its record could not be completed; the log has a line.
        self.unwritten: Exception | None = None
        #: The claim was told: the end of the block is, too.
        self.claimed = False
        #: The end was logged and signalled: once, whatever comes after it.
        self._told = False
        #: The transaction of work and completion is known to have committed.
        self.committed = False

    def compare(self, record: Record) -> bool:
        """
        Return whether the claim is to be sent again, with the record's fingerprint as its own.

        That is so where the secret that made it is gone (R47): a mismatch would invite a second
        charge.
        """
        request, stored = self.request, record.fingerprint
        if stored is None or stored in request.fingerprints or record.expired:
            return False
        if record.operation != request.operation:
            return False
        if not self.operation.fingerprint.lacks_key_of(stored):
            return False
        logger.warning(
            "Record %s was written under a secret that is gone, so that this request cannot be "
            "compared with it: they count as equal.",
            keys.short(request.record_id),
        )
        self.request = replace(request, fingerprints=(*request.fingerprints, stored))
        return True

    def is_answered_by(self, record: Record) -> bool:
        """Whether a record that was only read leaves this attempt nothing to claim."""
        self.compare(record)
        return decide(record, self.request) is not Decision.CLAIM_AGAIN

    def usable(self, claimed: Lease | Record) -> Lease | Record:
        """Return what a claim gave if it is a lease or `replayable`."""
        return claimed if isinstance(claimed, Lease) else self.replayable(claimed)

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
        if exc_value is None and self.operation.commit_hooks is not None:
            self.operation.commit_hooks.belong_to(self)
        if _is_heard(exc_value):
            self.tell_end(exc_value)

    async def __aenter__(self) -> None:
        """See `__enter__`."""
        self.push()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `__exit__`: receivers run on the thread of the work's connection."""
        self.pop()
        if exc_value is None and self.operation.commit_hooks is not None:
            self.operation.commit_hooks.belong_to(self)
        if _is_heard(exc_value):
            await finish(sync_to_async(self.tell_end)(exc_value))

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
                payload = self._sealed(payload) if policy.encryption_keys else payload
                return transact_item(lease, payload, retention=policy.retention)
            except (ResultTooLarge, TypeError, ValueError) as error:
                payload = self._without_result(error)
                return transact_item(lease, payload, retention=policy.retention)

        lease.completion = completion
        self.held = lease

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
        """Answer from the record; raise StoreError for a result that cannot be read."""
        self.held = None
        if encryption_keys := self.operation.policy.encryption_keys:
            result = encryption.opened(record.result, self.request.record_id, encryption_keys)
            record = replace(record, result=result)
        self.record = record
        self._outcome = Outcome(
            result=self._unpacked(record.result),
            replayed=True,
            record_id=record.record_id,
            fencing_token=record.epoch,
            expires_at=record.expires_at,
        )

    def conclude(self, result: Any, *, stored: bool, expires_at: datetime | None = None) -> None:
        """Answer with the result of this attempt's own work."""
        lease = self.lease
        self._outcome = Outcome(
            result=result,
            replayed=False,
            record_id=lease.record_id,
            fencing_token=lease.fencing_token,
            expires_at=expires_at,
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
            self.payload = payload = codecs.pack(
                operation.codec, result, max_bytes=operation.policy.max_result_bytes
            )
        except (ResultTooLarge, TypeError, ValueError) as error:
            self.conclude(result, stored=False)
            self.go_without_result(error)
            return
        if operation.policy.encryption_keys:
            self.payload = self._sealed(payload)
        if not operation.codec.exact:
            result = self._unpacked(payload)
        self.conclude(result, stored=True)

    def _sealed(self, envelope: bytes) -> bytes:
        """
        Return the envelope encrypted; the same bytes for the same envelope.

        So a store recognises the completion that `transact_item` has written, whatever the nonce.
        """
        if self._encrypted[0] != envelope:
            encryption_keys = self.operation.policy.encryption_keys
            sealed = encryption.sealed(envelope, self.request.record_id, encryption_keys)
            self._encrypted = envelope, sealed
        return self._encrypted[1]

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
        outcome = self.outcome
        self.conclude(outcome.result, stored=outcome.stored, expires_at=expires_at)

    def note_commit(self) -> None:
        """Note that the transaction of the work has committed."""
        self.committed = True

    # What the log and the signals say.

    def tell_claim(self) -> None:
        """Tell that the claim is won."""
        self.claimed = True
        tell_claim(type(self.store), self.facts("claimed"), takeover=self.lease.takeover)

    def tell_end(self, error: BaseException | None = None) -> None:
        """Tell what became of this attempt, unless a commit of the caller's is still to decide."""
        store, request = self.store, self.request
        if self.claimed and signals.left.receivers:
            signals.left.send_robust(type(store), alias=store.alias, operation=request.operation)
        outcome = self._end() if error is None else self._end_by(error)
        if outcome == "completed" and request.transaction == "single" and store.using is not None:
            after_commit(store.using, lambda: self.tell("completed"))
        elif outcome is not None:
            self.tell(outcome, error)

    def tell_replay(self, *, refused: bool) -> None:
        """Tell whether the adapter, which checks replays, has shown this one."""
        self.tell("replay refused" if refused else "replayed")

    def tell(self, outcome: str, error: BaseException | None = None) -> None:
        """Write the line of this attempt and send its terminal signal, once."""
        if self._told:
            return
        self._told = True
        tell_end(
            type(self.store),
            self.facts(outcome),
            self.unwritten or error,
            key=self.request.key,
            logged=self.unwritten is not None,
        )

    def facts(self, outcome: str) -> dict[str, Any]:
        """Return what log and signals tell of an outcome."""
        facts: dict[str, Any] = {
            "alias": self.store.alias,
            "operation": self.request.operation,
            "outcome": outcome,
            "record_id": self.request.record_id,
            "duration": time.monotonic() - self.began,
        }
        if self.record is not None:
            facts["attempts"] = self.record.attempts
        return facts

    def _end(self) -> str | None:
        """Return how an attempt with an outcome has ended; None if that is not known yet."""
        if self.replayed:
            if self.ending == "completed":
                return self.ending
            return None if self.operation.checks_replay else "replayed"
        if self.ending:
            return self.ending
        if self.unwritten is not None:
            return "store unavailable"
        kept = self.outcome.expires_at is not None
        return "completed" if kept or self.operation.outer is None else None

    def _end_by(self, error: BaseException) -> str:
        """Return how an attempt has ended that `error` leaves without an answer."""
        working = self.phase is Phase.WORKING
        if isinstance(error, StoreError) and not working:
            return "store unavailable"
        if isinstance(error, SessionLost) and not error.told:  # that of this work, not of another
            return "store unavailable"
        if self.replayed:
            return word_for(error) or "failed"
        if isinstance(error, LeaseLost) and (self.lease.lost or not working):
            # Where the record is gone no other attempt took over: the store lost it.
            return "store unavailable" if error.gone else "lease lost"
        if self.ending:
            return self.ending
        if self.unwritten is not None:
            return "store unavailable"
        # Without an ending a commit stands: it is an on_commit hook, or an interrupt, that raised.
        return "completed" if self.committed or self.kept else "failed"

    @property
    def completes_itself(self) -> bool:
        """Whether the completion is a write of its own, right after the work."""
        return self.request.transaction == "separate" and self.operation.outer is None

    @property
    def kept(self) -> bool:
        """Whether such a completion was written."""
        return self.completes_itself and self.concluded and self.outcome.expires_at is not None


def _is_heard(error: BaseException | None) -> bool:
    """Whether anything is told of an end: errors of a store are logged at any level."""
    return (
        error is not None
        or logger.isEnabledFor(logging.INFO)
        or any(map(signals.receivers, signals.ABOUT_ENDS))
    )


def _retry_after(record: Record) -> int:
    """Return seconds: as long as the attempt has been running, within its lease, 1 to 30 (R49)."""
    if record.running_for is None or record.lease_left is None:
        return 1
    return min(max(math.ceil(min(record.running_for, record.lease_left)), 1), 30)
