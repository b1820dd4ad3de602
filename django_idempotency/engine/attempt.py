"""One attempt at an operation, from its claim to its outcome."""

from __future__ import annotations

import enum
import logging
import math
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any

from asgiref.sync import sync_to_async

from django_idempotency import codecs, keys, signals
from django_idempotency.callables import refuse_lazy
from django_idempotency.claims import ClaimAgain, ClaimRequest, Decision, decide
from django_idempotency.codecs import encryption
from django_idempotency.context import Running, running
from django_idempotency.engine.ending import NOTHING, Ending
from django_idempotency.engine.notes import Notes
from django_idempotency.engine.operation import Operation
from django_idempotency.engine.report import Report
from django_idempotency.engine.steps import Steps
from django_idempotency.engine.threads import finish
from django_idempotency.engine.waiting import Waiter
from django_idempotency.exceptions import (
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    ResultTooLarge,
    StoreError,
    TransactionOpen,
)
from django_idempotency.leases import ItemLease, Lease
from django_idempotency.logs import word_for
from django_idempotency.observers import logger
from django_idempotency.records import Outcome, Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.transactions.aliases import AtomicBlocks
from django_idempotency.transactions.block import NO_ALIASES, WorkBlocks

__all__ = ["NO_RESULT", "Attempt", "Phase"]

#: In the place of a result that was not given.
NO_RESULT = object()


class Phase(enum.Enum):
    """How far an attempt has come: it tells whose exception it is that ends the block."""

    CLAIMING = "claiming"
    OPENING = "opening"
    WORKING = "working"
    COMPLETING = "completing"


class Attempt(Running):
    """One attempt, from its claim to its outcome: what the block of `attempt` works with."""

    phase = Phase.CLAIMING
    #: What the attempt waits with for another one, once it does.
    waiter: Waiter | None = None
    #: Whether the result comes from the record, so that nothing is to be run.
    replayed: bool = False
    #: The record that a replay answers from.
    record: Record | None = None
    #: What the work returned, once it has.
    returned: Any = NO_RESULT
    #: What becomes of the record and of the work.
    ending = NOTHING
    #: What became of the attempt, once that is known: see `outcome`.
    concluded: Outcome | None = None
    #: The last envelope that was encrypted, and what became of it.
    _encrypted = b"", b""

    def __init__(self, operation: Operation, store: BaseStore) -> None:
        policy, aliases = operation.policy, operation.aliases
        scope, key, name = keys.columns(operation.scope, operation.key, operation.name)
        has_deadline = operation.recorded and policy.deadline is not None
        self.operation = operation
        self.store = store
        #: The claim, with a token of this attempt's own.
        self.request = ClaimRequest(
            record_id=operation.record_id,
            scope=scope,
            key=key,
            operation=name,
            transaction=operation.transaction,
            fingerprints=operation.fingerprint.forms,
            digest=operation.fingerprint.digest,
            lease=policy.attempt_lease() if has_deadline else policy.lease,
            retention=policy.retention,
            max_duration=policy.max_duration,
            on_stale=policy.on_stale,
            steps=policy.transaction == "steps",
            opens_work=not signals.claimed.receivers,
        )
        self.blocks = WorkBlocks(AtomicBlocks(aliases) if aliases else NO_ALIASES)
        self.report = Report(store, self.request, operation.label)

    def take(self, claimed: Lease | Record) -> None:
        """Take the lease, or the answer of a record; raise what the record means otherwise."""
        if isinstance(claimed, Lease):
            if isinstance(claimed, ItemLease):
                claimed.completion = partial(self._item, claimed)
            self.held = claimed
            self.phase = Phase.OPENING
            if self.request.steps:
                claimed.steps = Steps(self.store, claimed, self.operation.policy)
            return
        decision = decide(claimed, self.request)
        if decision is Decision.REPLAY:
            self.replay(claimed)
            return
        if decision is Decision.MISMATCH and not self._takes_fingerprint(claimed):
            raise FingerprintMismatch
        if decision in (Decision.MISMATCH, Decision.CLAIM_AGAIN):
            raise ClaimAgain
        stale, message = decision is Decision.STALE, None
        if stale and claimed.steps is not None and not self.request.steps:
            message = (
                "An attempt in steps has not finished, and this code has no steps. Put "
                'transaction="steps" back, or let an operator decide.'
            )
        elif stale:
            message = "An attempt has not finished, and an operator has to decide what follows."
        retry_after = _retry_after(claimed)
        raise InProgress(message, record=claimed, retry_after=retry_after, stale=stale)

    def take_seen(self, seen: Record) -> bool:
        """Take the answer of a record that was read; return False if there is a claim to make."""
        try:
            self.take(seen)
        except ClaimAgain:
            return False
        return True

    def _takes_fingerprint(self, record: Record) -> bool:
        """
        Return whether the fingerprint of a record that differs is taken as the request's own.

        That is so where the secret that made it is gone (R47): a mismatch would invite a second
        charge. The claim is to be sent again then.
        """
        request, stored = self.request, record.fingerprint
        if stored is None or record.operation != request.operation:
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

    @property
    def lease(self) -> Lease:
        """The lease of this attempt; RuntimeError for a replay, which has none."""
        if self.held is None:
            raise RuntimeError("A replay has no lease: nothing is to be run.")
        return self.held

    @property
    def notes(self) -> Notes | None:
        """The notes of the work's steps, in mode ``steps``."""
        return None if self.held is None or self.held.steps is None else self.held.steps.notes

    @property
    def name(self) -> str:
        """How a line of the log names it."""
        if self.held is None:
            return "a request without a key"
        return f"record {keys.short(self.held.record_id)}"

    @property
    def is_bare(self) -> bool:
        """Whether the work of a coroutine has neither a record nor a transaction."""
        return not self.operation.recorded and self.request.transaction == "separate"

    @property
    def is_within_itself(self) -> bool:
        """Whether an attempt around this one has its record."""
        return any(
            other is not self and other.record_id == self.record_id and other.store is self.store
            for other in running()
            if isinstance(other, Attempt)
        )

    @property
    def is_completing(self) -> bool:
        """See `Running.is_completing`: the work has ended."""
        return self.phase is Phase.COMPLETING

    #: Makes this attempt the innermost one, and its lease `current()`: until the on_commit hooks of
    #: its transaction have run, be it the caller's. Whatever it opens on a connection is known by
    #: it: see `stores.database`.
    __enter__ = Running.push

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._leave(exc_value):
            self.report.left(self._word(exc_value), exc_value)

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
        if self._leave(exc_value):
            await finish(sync_to_async(self.report.left)(self._word(exc_value), exc_value))

    def _leave(self, error: BaseException | None) -> bool:
        """
        End what `push` began; return whether anything is told of the end.

        Errors of a store are logged at any level.
        """
        self.pop()
        if error is None and self.operation.commit_hooks is not None:
            self.operation.commit_hooks.belong_to(self)
        if isinstance(error, StoreError) and self.held is None:
            error.at_claim = self.waiter is None
        return self.operation.recorded and (
            error is not None
            or logger.isEnabledFor(logging.INFO)
            or any(map(signals.receivers, signals.ABOUT_ENDS))
        )

    def _item(self, lease: ItemLease, result: Any) -> Any:
        """Return the completion with `result`, as an item of the caller's own transaction."""
        policy, codec = self.operation.policy, self.operation.codec
        if self.operation.outer is not None:
            raise TransactionOpen(
                "transact_item() would complete before the transaction that is open here commits. "
                "Call it outside atomic()."
            )
        try:
            payload = codecs.pack(codec, result, max_bytes=policy.max_result_bytes)
            return lease.item_of(self._sealed(payload), policy.retention)
        except (ResultTooLarge, TypeError, ValueError) as error:
            return lease.item_of(self._without_result(error), policy.retention)

    def complete(self, result: Any = None) -> None:
        """Give the result of the work; it is kept when the block ends."""
        if self.replayed:
            raise RuntimeError("This attempt is a replay: it has its result already.")
        if self.phase is Phase.COMPLETING:
            raise RuntimeError("The block of this attempt has ended: complete() comes too late.")
        self.returned = refuse_lazy("The work", result)

    @property
    def outcome(self) -> Outcome:
        """What became of the attempt; RuntimeError before its block has ended."""
        if self.concluded is None:
            raise RuntimeError("The attempt has no outcome before its block has ended.")
        return self.concluded

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
        self.record, self.replayed = record, True
        self.report.attempts = record.attempts
        operation = self.operation
        self.concluded = Outcome(
            result=codecs.unpack(
                operation.codec, record.result, max_bytes=operation.policy.max_result_bytes
            ),
            replayed=True,
            record_id=record.record_id,
            fencing_token=record.epoch,
            expires_at=record.expires_at,
        )

    def conclude(self, result: Any, *, stored: bool) -> None:
        """Answer with the result of this attempt's own work."""
        self.concluded = Outcome(
            result=result,
            replayed=False,
            record_id=self.request.record_id,
            fencing_token=0 if self.held is None else self.held.fencing_token,
            stored=stored,
        )

    def pack(self, result: Any) -> bytes:
        """
        Make `result` the outcome, and return its envelope: the payload to keep.

        Raises ResultTooLarge, or what the codec raises, for a result that cannot be stored, unless
        the operation may be completed without its result.
        """
        operation, most = self.operation, self.operation.policy.max_result_bytes
        try:
            payload = codecs.pack(operation.codec, result, max_bytes=most)
        except (ResultTooLarge, TypeError, ValueError) as error:
            payload = self._without_result(error)
            self.conclude(result, stored=False)
            return payload
        if not operation.codec.exact:
            result = codecs.unpack(operation.codec, payload, max_bytes=most)
        self.conclude(result, stored=True)
        return self._sealed(payload) if operation.policy.encryption_keys else payload

    def _sealed(self, envelope: bytes) -> bytes:
        """
        Return the envelope encrypted, if there are keys; the same bytes for the same envelope.

        So a store recognises the completion that `transact_item` has written, whatever the nonce.
        """
        if self._encrypted[0] != envelope:
            encryption_keys = self.operation.policy.encryption_keys
            sealed = encryption.sealed(envelope, self.request.record_id, encryption_keys)
            self._encrypted = envelope, sealed
        return self._encrypted[1]

    def go_without_result(self, error: Exception) -> bytes:
        """Return what is kept without the result; raise `error` where that is not allowed (R62)."""
        payload = self._without_result(error)
        self.withhold()
        return payload

    def withhold(self) -> None:
        """Note that no later attempt can get the result."""
        self.concluded = replace(self.outcome, stored=False)

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

    def kept_until(self, expires_at: datetime | None) -> None:
        """Note when the record expires that holds the outcome."""
        self.concluded = replace(self.outcome, expires_at=expires_at)

    # What has become of the work.

    def end_without_answer(self, ending: Ending) -> None:
        """
        Take an ending that keeps nothing; after a step a record is not released (T11).

        It is held while a call is uncertain, and where the journal, which may say so, could not be
        read (S13, S16).
        """
        notes = self.notes
        if notes is not None and notes.any_written:
            state = State.FAILED if ending.state is State.RELEASED else ending.state
            ending = replace(ending, state=state, held=bool(notes.uncertain))
        elif notes is None and self.held is not None and self.held.journal is not None:
            ending = replace(ending, held=True)
        self.ending = ending

    @property
    def is_uncertain(self) -> bool:
        """Whether nobody knows of a call whether it was made (T12)."""
        return self.notes is not None and bool(self.notes.uncertain)

    @property
    def has_notes(self) -> bool:
        """Whether a step of this attempt or of an earlier one is noted, as far as is known."""
        return self.notes is not None and self.notes.any_written

    @property
    def rolled_back(self) -> bool:
        """Whether what the work wrote is rolled back; without a transaction it stays."""
        if self.ending.commits:
            return False
        joined = self.request.transaction != "separate"
        beside = self.blocks.beside
        return joined or (bool(beside) and not beside.committed)

    def tell_replay(self, *, refused: bool) -> None:
        """Tell whether the adapter, which checks replays, has shown this one."""
        self.report.ended("replay refused" if refused else "replayed")

    def _word(self, error: BaseException | None) -> str | None:
        """Return how the attempt has ended, for log and signals; None if that is not known yet."""
        word = None if error is None else self._word_for(error)
        if word is not None:
            return word
        # What `transact_item` has completed is the attempt's own record, under its token.
        if self.record is not None and self.record.token != self.request.token:
            return None if self.operation.checks_replay else "replayed"
        if not self.ending.keeps:
            return self.ending.word
        if self.report.unwritten is not None:
            return "store unavailable"
        if self.operation.outer is not None and self.outcome.expires_at is None:
            return None  # the completion is to come with the caller's commit
        return self.ending.word

    def _word_for(self, error: BaseException) -> str | None:
        """Return how an attempt has ended, if `error` alone tells."""
        working = self.phase is Phase.WORKING
        of_step = isinstance(error, StoreError) and error.record_id == self.record_id
        if isinstance(error, StoreError) and (of_step or not working):
            return "store unavailable"
        if self.held is None:
            return word_for(error) or "failed"
        if isinstance(error, LeaseLost) and (self.lease.lost or not working):
            # Where the record is gone no other attempt took over: the store lost it.
            return "store unavailable" if error.gone else "lease lost"
        return None


def _retry_after(record: Record) -> int:
    """Return seconds: as long as the attempt has been running, within its lease, 1 to 30 (R49)."""
    if record.running_for is None or record.lease_left is None:
        return 1
    return min(max(math.ceil(min(record.running_for, record.lease_left)), 1), 30)
