"""
How an attempt ends: its completion, and everything that can come instead of it.

The endings return the exception to raise, or None if the attempt's outcome stands.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeGuard

from asgiref.sync import sync_to_async

from django_idempotency import codecs, keys
from django_idempotency.claims import ClaimAgain
from django_idempotency.engine.attempt import Attempt, Phase
from django_idempotency.engine.operation import RollBack
from django_idempotency.exceptions import (
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    ResultTooLarge,
    StoreError,
)
from django_idempotency.leases import Lease
from django_idempotency.logs import extra, log_failure
from django_idempotency.observers import logger
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore

__all__ = ["Endings"]

#: The state of a record whose work has committed under a verdict.
_STATES = {"keep": State.COMPLETED, "release": State.RELEASED, "fail": State.FAILED}


class Endings:
    """The endings of attempts on one store."""

    def __init__(self, store: BaseStore) -> None:
        self.store = store

    def complete(self, attempt: Attempt) -> None:
        """
        Write what the verdict says, conditional on the proof: the owner's last write.

        Raises LeaseLost, so that the work rolls back, unless the work does not commit with it.
        """
        if attempt.verdict != "keep":
            self._commit_without_answer(attempt)
            return
        if attempt.operation.outer is not None:
            attempt.operation.outer.after_commit(lambda: self._complete_late(attempt))
            return
        try:
            self._keep(attempt)
        except (LeaseLost, StoreError) as error:
            self._incomplete(attempt, error)

    async def acomplete(self, attempt: Attempt) -> None:
        """See `complete`."""
        if attempt.verdict != "keep" and attempt.request.transaction == "separate":
            await self._aend_lease(attempt.lease, _text_of(attempt.verdict))
            return
        if attempt.verdict != "keep" or attempt.operation.outer is not None:
            await sync_to_async(self.complete)(attempt)
            return
        try:
            await self._akeep(attempt)
        except (LeaseLost, StoreError) as error:
            self._incomplete(attempt, error)

    def _commit_without_answer(self, attempt: Attempt) -> None:
        """Release or fail the record in the transaction of the work, or after it (R57)."""
        lease, text = attempt.lease, _text_of(attempt.verdict)
        if attempt.request.transaction == "separate":
            self._end_lease(lease, text)
        elif self._write_end(lease, text) is False:
            raise LeaseLost(gone=self._read(lease) is None)

    def _read(self, lease: Lease) -> Record | None:
        """Return the record as it is where the lease was claimed (R98)."""
        with self.store.at(lease.place):
            return self.store.get(lease.record_id)

    def _write_end(self, lease: Lease, text: str | None) -> bool | None:
        """Fail the record with `text`, or release it; return what the store tells of the proof."""
        return self.store.release(lease) if text is None else self.store.fail(lease, text)

    def _end_lease(
        self, lease: Lease, text: str | None, raised: BaseException | None = None
    ) -> None:
        """See `_write_end`; a store that cannot be reached masks nothing (R58)."""
        try:
            self._write_end(lease, text)
        except StoreError as unwritten:
            _leave_to_lapse(lease, unwritten, raised)

    def _keep(self, attempt: Attempt) -> None:
        """Complete with the payload, or without it if it is too large for the store itself."""
        lease, retention = attempt.lease, attempt.operation.policy.retention
        try:
            expires_at = self.store.complete(lease, attempt.payload, retention=retention)
        except ResultTooLarge as error:
            attempt.go_without_result(error)
            expires_at = self.store.complete(lease, attempt.payload, retention=retention)
        _completed(attempt, expires_at)

    async def _akeep(self, attempt: Attempt) -> None:
        lease, retention = attempt.lease, attempt.operation.policy.retention
        try:
            expires_at = await self.store.acomplete(lease, attempt.payload, retention=retention)
        except ResultTooLarge as error:
            attempt.go_without_result(error)
            expires_at = await self.store.acomplete(lease, attempt.payload, retention=retention)
        _completed(attempt, expires_at)

    def _incomplete(self, attempt: Attempt, error: LeaseLost | StoreError) -> None:
        """Separate: the work is done and stands, so its caller gets the result (R60)."""
        superseded = isinstance(error, LeaseLost) and not error.gone
        if superseded or attempt.request.transaction != "separate":
            raise error
        record = keys.short(attempt.lease.record_id)
        facts = extra(attempt.facts("store unavailable"))
        if isinstance(error, LeaseLost):
            logger.error(
                "Record %s is gone from the store; its work stands, and a retry will run again.",
                record,
                extra=facts,
            )
        else:
            log_failure(
                "Record %s could not be completed; its lease will lapse, and a retry will run "
                "again.",
                record,
                error=error,
                key=attempt.request.key,
                extra=facts,
            )
        attempt.unwritten = error
        attempt.conclude(attempt.outcome.result, stored=False)

    def _complete_late(self, attempt: Attempt) -> None:
        """Complete after the caller's transaction has committed: nobody is left to tell."""
        try:
            self._keep(attempt)
        except Exception as error:  # whatever it is, the work stands, and its end is to be told
            superseded = isinstance(error, LeaseLost) and not error.gone
            outcome = "lease lost" if superseded else "store unavailable"
            log_failure(
                "Record %s could not be completed after the commit.",
                keys.short(attempt.lease.record_id),
                error=error,
                key=attempt.request.key,
                extra=extra(attempt.facts(outcome)),
            )
            attempt.unwritten = error
            attempt.tell(outcome)
        else:
            attempt.tell("completed")

    # The other endings. Each returns the exception to raise, or None if the outcome stands.

    def end(
        self,
        attempt: Attempt,
        raised: BaseException,
        on_error: Callable[[Exception], Any] | None = None,
    ) -> BaseException | None:
        """The block was left with an exception, so what it did is rolled back (R57, R58, R60)."""
        if attempt.committed:  # an on_commit hook raised: the record is completed
            return raised
        attempt.rolled_back = attempt.rolled_back or attempt.request.transaction != "separate"
        if _may_be_answered(raised, attempt, on_error):
            refused = self._ask(attempt, raised, on_error)
            return self._answer(attempt) if refused is None else self._give_up(attempt, refused)
        if _is_of_completion(raised, attempt):
            if isinstance(raised, LeaseLost):
                return self._lease_lost(attempt, raised)
            if attempt.request.transaction == "joined":
                return self._settle_joined(attempt, raised)
            if attempt.completes_itself and self._complete_again(attempt):
                return raised
        return self._give_up(attempt, raised)

    async def aend(
        self,
        attempt: Attempt,
        raised: BaseException,
        on_error: Callable[[Exception], Any] | None = None,
    ) -> BaseException | None:
        """See `end`: a store that does not answer keeps no other coroutine's work waiting."""
        if attempt.request.transaction != "separate":
            return await sync_to_async(self.end)(attempt, raised, on_error)
        if _may_be_answered(raised, attempt, on_error):
            refused = await sync_to_async(self._ask)(attempt, raised, on_error)
            if refused is not None:
                return await self._agive_up(attempt, refused)
            try:
                await self.acomplete(attempt)
            except LeaseLost as lost:
                return lost
            return None
        if _is_of_completion(raised, attempt):
            if isinstance(raised, LeaseLost):
                return raised
            if attempt.completes_itself and await self._acomplete_again(attempt):
                return raised
        return await self._agive_up(attempt, raised)

    def _complete_again(self, attempt: Attempt) -> bool:
        """
        Complete after an interrupt of a completion that may be on its way; return whether it is.

        To fail the record would race with that completion, and could free the key of work that
        stands. A completion that is repeated under its own token changes nothing.
        """
        try:
            if not attempt.kept:
                self.complete(attempt)
        except LeaseLost:
            attempt.ending = "lease lost"
        except Exception:  # it was no interrupt: the record cannot be completed like this
            return False
        return True

    async def _acomplete_again(self, attempt: Attempt) -> bool:
        """See `_complete_again`."""
        try:
            if not attempt.kept:
                await self.acomplete(attempt)
        except LeaseLost:
            attempt.ending = "lease lost"
        except Exception:  # it was no interrupt: the record cannot be completed like this
            return False
        return True

    def _ask(
        self, attempt: Attempt, raised: Exception, on_error: Callable[[Exception], Any] | None
    ) -> Exception | None:
        """Take the answer to keep without the work, or return why there is none."""
        try:
            if isinstance(raised, RollBack):
                attempt.pack(raised.result)
            elif on_error is not None:
                attempt.pack(on_error(raised))
        except Exception as refused:
            return refused
        attempt.phase, attempt.verdict = Phase.COMPLETING, "keep"
        attempt.kept_error = True
        return None

    def _answer(self, attempt: Attempt) -> BaseException | None:
        """Keep the answer, without the work."""
        try:
            self.complete(attempt)
        except LeaseLost as lost:
            return self._lease_lost(attempt, lost)
        except StoreError as error:
            if attempt.request.transaction == "single":
                raise  # this transaction is broken: `settle_single` opens another
            return self._settle_joined(attempt, error)
        return None

    def _give_up(self, attempt: Attempt, raised: BaseException) -> BaseException | None:
        """Free the key: nothing is kept, and what there is to answer goes to this caller alone."""
        text, error = _verdict(attempt, raised)
        self._end_lease(attempt.lease, text, raised)
        return error

    async def _agive_up(self, attempt: Attempt, raised: BaseException) -> BaseException | None:
        text, error = _verdict(attempt, raised)
        await self._aend_lease(attempt.lease, text, raised)
        return error

    async def agive_back(self, lease: Lease) -> None:
        """End a lease under which nothing ran; an earlier attempt's fingerprint stays."""
        await self._aend_lease(lease, "cancelled")

    async def _aend_lease(
        self, lease: Lease, text: str | None, raised: BaseException | None = None
    ) -> None:
        try:
            if text is None:
                await self.store.arelease(lease)
            else:
                await self.store.afail(lease, text)
        except StoreError as unwritten:
            _leave_to_lapse(lease, unwritten, raised)

    def _lease_lost(self, attempt: Attempt, lost: LeaseLost) -> BaseException | None:
        """The completion was refused. In `single` the record may have an answer meanwhile."""
        if attempt.request.transaction == "single":
            record = self._read(attempt.lease)
            if record is not None and record.state is State.COMPLETED:
                try:
                    attempt.replay(attempt.replayable(record))
                except (ClaimAgain, FingerprintMismatch):
                    return lost
                return None
        return lost

    def _settle_joined(self, attempt: Attempt, raised: BaseException) -> BaseException | None:
        """
        The completion or its COMMIT failed, or its answer was lost.

        The truth comes from a conditional write under this attempt's token: a plain read could be
        ahead of a COMMIT that is still on its way. It writes what that COMMIT would not.
        """
        lease = attempt.lease
        try:
            ending = "fail"
            if isinstance(raised, StoreError) and attempt.verdict != "release":
                ending = "release"
            with self.store.working_connection():
                self._write_end(lease, _error_text(raised) if ending == "fail" else None)
                record = self._read(lease)
        except StoreError as unknown:
            return _unknown(unknown)
        if record is None or (record.epoch, record.token) != (lease.fencing_token, lease.token):
            lost = LeaseLost(gone=record is None)
            return lost if isinstance(raised, StoreError) else raised
        committed = record.state is _STATES[attempt.verdict] and attempt.verdict != ending
        attempt.rolled_back = not committed
        return None if committed and isinstance(raised, Exception) else raised

    def settle_single(self, attempt: Attempt, raised: BaseException) -> BaseException | None:
        """
        The one transaction of `single` failed, or the answer to its COMMIT was lost.

        A claim under the same token, in a new transaction, takes the same lock, and so tells
        whether the first one is still alive, has committed, or is gone.
        """
        if attempt.committed:  # an on_commit hook raised
            return raised
        if attempt.request.transaction != "single" or not attempt.concluded:
            return raised  # by an ending that failed otherwise: no second one is tried
        attempt.rolled_back = True
        if attempt.phase is Phase.NOT_KEPT:
            return None
        if attempt.verdict != "keep" and isinstance(raised, StoreError):
            return _unknown(raised)  # no record would tell
        retention = attempt.operation.policy.retention
        try:
            # The claim, too, goes to the place of the first one.
            at = self.store.at(attempt.lease.place)
            with self.store.working_connection(), at, self.store.atomic():
                claimed = self.store.claim(attempt.request)
                if isinstance(claimed, Lease):  # nothing was committed
                    if not attempt.kept_error:
                        self.store.fail(claimed, _error_text(raised))
                        return raised
                    self.store.complete(claimed, attempt.payload, retention=retention)
                elif claimed.token != attempt.request.token or claimed.state is not State.COMPLETED:
                    attempt.replay(attempt.replayable(claimed))
                else:
                    attempt.rolled_back = attempt.kept_error
        except (ClaimAgain, FingerprintMismatch, InProgress, LeaseLost, StoreError) as unknown:
            return _unknown(unknown)
        return None if isinstance(raised, Exception) else raised


def _unknown(cause: Exception) -> StoreError:
    failure = StoreError("Whether the work was committed is not known; try again.")
    failure.__cause__ = cause
    return failure


def _completed(attempt: Attempt, expires_at: datetime) -> None:
    """Note that the record is completed; the answer is what it was completed with (I4)."""
    attempt.kept_until(expires_at)
    committed = attempt.lease.completed_before
    if committed is None:
        return
    if committed.result == codecs.unavailable(attempt.operation.codec):
        attempt.conclude(attempt.outcome.result, stored=False)
        attempt.kept_until(expires_at)
    else:
        logger.warning(
            "The work of record %s returned another result than it gave to transact_item(): the "
            "answer is the one that was committed.",
            keys.short(committed.record_id),
        )
        attempt.replay(committed)
        attempt.ending = "completed"


def _may_be_answered(
    raised: BaseException, attempt: Attempt, on_error: Callable[[Exception], Any] | None
) -> TypeGuard[Exception]:
    """Whether an answer to this may be kept without the work: the adapter's, or its verdict's."""
    if isinstance(raised, RollBack):
        return raised.verdict == "keep"
    is_of_work = attempt.phase is Phase.WORKING and isinstance(raised, Exception)
    return on_error is not None and is_of_work


def _is_of_completion(raised: BaseException, attempt: Attempt) -> bool:
    """Whether the work was done and its result packed before this was raised."""
    if isinstance(raised, RollBack):
        return False
    return attempt.phase is Phase.COMPLETING and attempt.concluded


def _verdict(attempt: Attempt, raised: BaseException) -> tuple[str | None, BaseException | None]:
    """Return what the record is to say, None to release it, and the exception to raise."""
    if not isinstance(raised, RollBack):
        attempt.ending = "failed"
        return _error_text(raised), raised
    attempt.ending = "released" if raised.verdict == "release" else "failed"
    attempt.phase = Phase.NOT_KEPT
    attempt.conclude(raised.result, stored=False)
    if raised.error is not None and raised.verdict == "fail":
        return _error_text(raised.error), raised.error
    return _text_of(raised.verdict), raised.error


def _text_of(verdict: str) -> str | None:
    """Return what the record is to say of an answer that is not kept, None to release it."""
    return None if verdict == "release" else "not kept"


def _leave_to_lapse(lease: Lease, error: StoreError, raised: BaseException | None) -> None:
    """Tell that the end of a lease cannot be written; that masks nothing (R58)."""
    if isinstance(raised, StoreError) and not raised.told:
        return  # the line about that error tells of this store
    follows = "it will lapse."
    if lease.request.transaction == "single":
        follows = "it ends with its transaction."
    # Without a traceback: it would go on to quote the work's own exception (R79).
    logger.error(
        "The end of the lease on record %s could not be written; %s %s",
        keys.short(lease.record_id),
        follows,
        error,
    )


def _error_text(error: BaseException) -> str:
    """Return what the record may say of an error: its type; its text may quote the payload."""
    return f"{type(error).__module__}.{type(error).__qualname__}"
