"""
How the ending of an attempt is written, and what holds where that fails.

A method that gets an exception returns the one to raise in its place, or None where the outcome of
the attempt stands.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django_idempotency import codecs, keys
from django_idempotency.claims import ClaimAgain
from django_idempotency.engine.attempt import Attempt, Phase
from django_idempotency.engine.ending import NOTHING, Ending, RollBack, ending_by, write_ending
from django_idempotency.engine.steps import leaves
from django_idempotency.exceptions import (
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    ResultTooLarge,
    ResultUnavailable,
    StoreError,
)
from django_idempotency.leases import Lease
from django_idempotency.logs import extra, log_failure
from django_idempotency.observers import logger
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore


def settle(attempt: Attempt) -> None:
    """
    Write the ending of the attempt, with its work or after it.

    Raises LeaseLost and StoreError where the work must not stand without its record.
    """
    lease, ending, outer = attempt.held, attempt.ending, attempt.operation.outer
    if lease is None:
        return
    if not ending.keeps:
        if attempt.request.transaction == "separate":
            _end_lease(attempt.store, lease, ending)
            return
        try:  # in the transaction of the work (R57)
            write_ending(attempt.store, lease, ending)
        except LeaseLost:
            raise LeaseLost(gone=_read(attempt.store, lease) is None) from None
    elif outer is not None:
        outer.after_commit(lambda: _complete_late(attempt, lease, ending))
    else:
        try:
            _complete(attempt, lease, ending)
        except (LeaseLost, StoreError) as error:
            _incomplete(attempt, error)


def _end_lease(
    store: BaseStore, lease: Lease, ending: Ending, raised: BaseException | None = None
) -> None:
    """Fail or release the record; a store that cannot be reached masks nothing (R58)."""
    try:
        with suppress(LeaseLost):
            write_ending(store, lease, ending)
    except StoreError as unwritten:
        _leave_to_lapse(lease, unwritten, raised)


def _read(store: BaseStore, lease: Lease) -> Record | None:
    """Return the record as it is where the lease was claimed (R98)."""
    with store.at(lease.place):
        return store.get(lease.record_id)


def _complete(attempt: Attempt, lease: Lease, ending: Ending) -> None:
    """Complete with the payload, or without it if it is too large for the store itself."""
    try:
        expires_at = write_ending(attempt.store, lease, ending)
    except ResultTooLarge as error:
        payload = attempt.go_without_result(error)
        expires_at = write_ending(attempt.store, lease, replace(ending, payload=payload))
    attempt.kept_until(expires_at)
    if lease.steps is not None:
        lease.steps.tell_unused()
    if lease.completed_before is not None:
        _answer_as_completed(attempt, lease.completed_before)


def _incomplete(attempt: Attempt, error: LeaseLost | StoreError) -> None:
    """
    Give the caller its result, without a record: in `separate` the work stands (R60).

    Raises `error` in the other modes, and where another attempt has taken over.
    """
    superseded = isinstance(error, LeaseLost) and not error.gone
    if superseded or attempt.request.transaction != "separate":
        raise error
    record = keys.short(attempt.lease.record_id)
    facts = extra(attempt.report.facts("store unavailable"))
    if isinstance(error, LeaseLost):
        logger.error(
            "Record %s is gone from the store; its work stands, and a retry will run again.",
            record,
            extra=facts,
        )
    else:
        log_failure(
            "Record %s could not be completed; its lease will lapse, and a retry will run again.",
            record,
            error=error,
            key=attempt.request.key,
            extra=facts,
        )
    attempt.report.unwritten = error
    attempt.withhold()


def _complete_late(attempt: Attempt, lease: Lease, ending: Ending) -> None:
    """Complete after the caller's transaction has committed: no error can reach the caller."""
    try:
        _complete(attempt, lease, ending)
    except Exception as error:  # whatever it is, the work stands, and its end is to be told
        superseded = isinstance(error, LeaseLost) and not error.gone
        outcome = "lease lost" if superseded else "store unavailable"
        log_failure(
            "Record %s could not be completed after the commit.",
            keys.short(lease.record_id),
            error=error,
            key=attempt.request.key,
            extra=extra(attempt.report.facts(outcome)),
        )
        attempt.report.unwritten = error
        attempt.report.ended(outcome)
    else:
        attempt.report.ended("completed")


# An exception has left the block of the work.


def settle_raised(
    attempt: Attempt,
    raised: BaseException,
    on_error: Callable[[Exception], Any] | None = None,
) -> BaseException | None:
    """Write the ending of work that an exception has rolled back (R57, R58, R60)."""
    leaves(raised)
    if attempt.blocks.committed:  # an on_commit hook raised: the record is completed
        return raised
    if attempt.ending is NOTHING:
        attempt.end_without_answer(ending_by(raised))
        refused = ask_for_answer(attempt, raised, on_error)
        if refused is not None:
            return _give_up(attempt, refused)
        return _keep_answer(attempt)
    # The work had ended, and its ending was to be written, when this was raised.
    if isinstance(raised, LeaseLost):
        return _lease_lost(attempt, raised)
    mode, operation = attempt.request.transaction, attempt.operation
    if mode == "joined":
        return _settle_joined(attempt, raised)
    # The completion was a write of its own, right after the work.
    if mode == "separate" and operation.outer is None and _complete_again(attempt):
        return raised
    # In a transaction of its own, and not in the caller's, `single` may have sent its COMMIT, too.
    if mode == "single" and operation.commit_hooks is None and not _is_told(raised):
        raise raised  # see `settle_single`
    return _give_up(attempt, raised)


def ask_for_answer(
    attempt: Attempt,
    raised: BaseException,
    on_error: Callable[[Exception], Any] | None = None,
) -> BaseException | None:
    """
    Ask for an answer that is kept without the work; its completion is the ending then.

    Returns the exception that leaves none, None where there is one.
    """
    try:
        if isinstance(raised, RollBack):
            if raised.verdict != "keep" or attempt.held is None:
                return raised
            answer = raised.result
        elif on_error is None or attempt.phase is not Phase.WORKING:
            return raised
        elif isinstance(raised, Exception):
            answer = on_error(raised)
            if attempt.is_uncertain:
                return RollBack("fail", answer)  # kept, it would end the question (S13)
        else:
            return raised
        payload = attempt.pack(answer)
    except Exception as refused:
        return refused
    attempt.phase = Phase.COMPLETING
    attempt.ending = Ending(State.COMPLETED, commits=False, payload=payload)
    return None


def _keep_answer(attempt: Attempt) -> BaseException | None:
    """Write the answer that is kept without the work."""
    try:
        settle(attempt)
    except LeaseLost as lost:
        return _lease_lost(attempt, lost)
    except StoreError as error:
        if attempt.request.transaction == "single":
            raise  # this transaction is broken: `settle_single` opens another
        return _settle_joined(attempt, error)
    return None


def _give_up(attempt: Attempt, raised: BaseException) -> BaseException | None:
    """Free the key, and keep nothing: this caller alone gets the answer, if there is one."""
    attempt.end_without_answer(ending_by(raised))
    if attempt.held is not None:
        _end_lease(attempt.store, attempt.held, attempt.ending, raised)
    if not isinstance(raised, RollBack):
        return raised
    attempt.phase = Phase.COMPLETING
    attempt.conclude(raised.result, stored=False)
    return raised.error


def _complete_again(attempt: Attempt) -> bool:
    """
    Complete again after an interrupt, whose completion may be on its way; return whether it is.

    To fail the record would race with that completion, and could free the key of work that
    stands. A completion that is repeated under its own token changes nothing.
    """
    try:
        if attempt.outcome.expires_at is None:
            settle(attempt)
    except LeaseLost:
        attempt.ending = NOTHING
    except Exception:  # it was no interrupt: the record cannot be completed like this
        return False
    return True


def _lease_lost(attempt: Attempt, lost: LeaseLost) -> BaseException | None:
    """The completion was refused. In `single` the record may have an answer meanwhile."""
    record = (
        _read(attempt.store, attempt.lease) if attempt.request.transaction == "single" else None
    )
    attempt.ending = ending_by(lost)
    if record is None or record.state is not State.COMPLETED:
        return lost
    try:
        attempt.take(record)
    except (ClaimAgain, FingerprintMismatch):
        return lost
    except (ResultUnavailable, StoreError) as unreadable:
        return unreadable
    return None


def _settle_joined(attempt: Attempt, raised: BaseException) -> BaseException | None:
    """
    The completion or its COMMIT failed, or its answer was lost.

    The truth comes from a conditional write under this attempt's token: a plain read could be
    ahead of a COMMIT that is still on its way. It writes what that COMMIT would not.
    """
    lease, ending, other = attempt.lease, attempt.ending, ending_by(raised)
    attempt.ending = other
    if isinstance(raised, StoreError) and ending.state is not State.RELEASED:
        other = replace(other, state=State.RELEASED)
    try:
        with attempt.store.working_connection():
            with suppress(LeaseLost):
                write_ending(attempt.store, lease, other)
            record = _read(attempt.store, lease)
    except StoreError as unknown:
        return _unknown(unknown)
    if record is None or (record.epoch, record.token) != (lease.fencing_token, lease.token):
        lost = LeaseLost(gone=record is None)
        return lost if isinstance(raised, StoreError) else raised
    if record.state is not ending.state or ending.state is other.state:
        return raised
    if ending.keeps:
        attempt.kept_until(record.expires_at)
    attempt.ending = ending  # it has committed
    return None if isinstance(raised, Exception) else raised


def settle_single(attempt: Attempt, raised: BaseException) -> BaseException | None:
    """
    The one transaction of `single` failed, or the answer to its COMMIT was lost.

    A claim under the same token, in a new transaction, takes the same lock, and so tells
    whether the first one is still alive, has committed, or is gone.
    """
    ending = attempt.ending
    if attempt.blocks.committed:  # an on_commit hook raised
        return raised
    if attempt.request.transaction != "single" or attempt.concluded is None:
        return raised  # the ending itself has failed: no second one is tried
    attempt.ending = replace(ending, commits=False)
    if not ending.keeps:
        if not ending.commits:
            return None if isinstance(raised, Exception) else raised
        if isinstance(raised, StoreError):
            return _unknown(raised)  # no record would tell
    try:
        # The claim, too, goes to the place of the first one.
        at = attempt.store.at(attempt.lease.place)
        with attempt.store.working_connection(), at, attempt.store.atomic():
            claimed = attempt.store.claim(attempt.request)
            if isinstance(claimed, Lease):  # nothing was committed
                if ending.commits:
                    attempt.ending = ending_by(raised)
                    with suppress(LeaseLost):
                        write_ending(attempt.store, claimed, attempt.ending)
                    return raised
                attempt.kept_until(write_ending(attempt.store, claimed, ending))
            elif claimed.token != attempt.request.token or claimed.state is not State.COMPLETED:
                attempt.take(claimed)
            else:
                attempt.kept_until(claimed.expires_at)
                attempt.ending = ending
    except (ClaimAgain, FingerprintMismatch, InProgress, LeaseLost, StoreError) as unknown:
        return _unknown(unknown)
    return None if isinstance(raised, Exception) else raised


def _is_told(raised: BaseException) -> bool:
    """Whether the store has refused the completion: no COMMIT has followed it then."""
    return isinstance(raised, StoreError) and not raised.unreachable


def _unknown(cause: Exception) -> StoreError:
    failure = StoreError("Whether the work was committed is not known; try again.")
    failure.__cause__ = cause
    return failure


def _answer_as_completed(attempt: Attempt, committed: Record) -> None:
    """Answer with what `transact_item` has completed the record with (I4)."""
    if committed.result == codecs.unavailable(attempt.operation.codec):
        attempt.withhold()
        return
    logger.warning(
        "The work of record %s returned another result than it gave to transact_item(): the "
        "answer is the one that was committed.",
        keys.short(committed.record_id),
    )
    attempt.replay(committed)


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
