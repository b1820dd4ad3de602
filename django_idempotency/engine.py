"""
The main path: claim, work, complete, or an answer from the record.

    adapter: key, scope, operation, fingerprint, codec
        -> Engine.run -> store.claim -> work -> codecs.pack -> store.complete -> Outcome
    adapter: Outcome -> response / task result

`Engine.attempt` is that path as one block, `run` calls it, and `aattempt` and `arun` are the same
for coroutines. What a record means to a newcomer is decided by `decide` and nowhere else.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from django_idempotency import codecs, keys
from django_idempotency.exceptions import (
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    ResultTooLarge,
    StoreError,
)
from django_idempotency.policy import Policy
from django_idempotency.records import ClaimRequest, Lease, Outcome, Record, State
from django_idempotency.renewal import Keeper, keeper
from django_idempotency.stores.base import BaseStore, ClaimAgain

__all__ = ["Attempt", "Decision", "Engine", "Operation", "Unkept", "current", "decide"]

logger = logging.getLogger("django_idempotency")

T = TypeVar("T")

#: How often a claim that lost a race is sent again before the answer is "in progress".
CLAIM_TRIES = 5

_current: ContextVar[Lease | None] = ContextVar("django_idempotency_lease", default=None)


def current() -> Lease | None:
    """Return the lease of the work that this code is part of, or None outside of any."""
    return _current.get()


class Decision(enum.Enum):
    """What a record means to an attempt that comes upon it."""

    REPLAY = "replay"
    IN_PROGRESS = "in progress"
    STALE = "stale"
    MISMATCH = "mismatch"
    CLAIM_AGAIN = "claim again"


def decide(record: Record, request: ClaimRequest) -> Decision:
    """Return what `record` means to the attempt that asked with `request`."""
    if record.expired or record.state is State.RELEASED:
        return Decision.CLAIM_AGAIN
    if record.fingerprint is not None and record.fingerprint not in request.fingerprints:
        return Decision.MISMATCH
    if record.state is State.COMPLETED:
        return Decision.REPLAY
    if record.state is State.FAILED:
        return Decision.CLAIM_AGAIN
    if record.live:
        return Decision.IN_PROGRESS
    return Decision.CLAIM_AGAIN if request.on_stale == "take_over" else Decision.STALE


@dataclass(frozen=True)
class Operation:
    """One call to guard: whose key it is, what it asks for, and how it is to be guarded."""

    record_id: UUID
    scope: str
    key: str
    name: str
    fingerprints: tuple[bytes, ...]
    policy: Policy
    codec: codecs.Codec
    #: "single", "joined" or "separate": the policy's choice, or what its absence means here.
    transaction: str = "separate"
    #: A result that cannot be stored is no error: the record is completed without it (R62).
    unstorable_ok: bool = False
    #: Where the caller's transaction must commit before a store that cannot join completes.
    after_commit: Callable[[Callable[[], None]], None] | None = None

    def request(self) -> ClaimRequest:
        """Return the claim of a new attempt, with a token of its own."""
        return ClaimRequest(
            record_id=self.record_id,
            scope=keys.bounded(self.scope),
            key=keys.bounded(self.key),
            operation=keys.bounded(self.name),
            transaction=self.transaction,
            fingerprints=self.fingerprints,
            lease=self.policy.lease,
            retention=self.policy.retention,
            max_duration=self.policy.max_duration,
            on_stale=self.policy.on_stale,
        )


class Unkept(Exception):
    """Raised by an adapter: roll the work back, end the lease, and answer with `result`."""

    def __init__(self, verdict: str, result: Any = None) -> None:
        super().__init__(verdict)
        #: "release" or "fail".
        self.verdict = verdict
        self.result = result


class Phase(enum.Enum):
    """How far an attempt has come: it tells whose exception it is that ends the block."""

    OPENING = "opening"
    WORKING = "working"
    COMPLETING = "completing"
    UNKEPT = "unkept"


class Attempt:
    """One attempt, from its claim to its outcome: what the block of `Engine.attempt` works with."""

    def __init__(
        self, operation: Operation, request: ClaimRequest, lease: Lease | None = None
    ) -> None:
        self.operation = operation
        self.request = request
        self._lease = lease
        self._outcome: Outcome | None = None
        self.phase = Phase.OPENING
        #: `complete` was called, with this result.
        self.done = False
        self.given: Any = None
        #: The envelope to keep; for an answer made of an exception it is kept without the work.
        self.payload: bytes | None = None
        self.kept_error = False
        #: The transaction of work and completion is known to have committed.
        self.committed = False

    @property
    def lease(self) -> Lease:
        """The lease of this attempt; RuntimeError for a replay, which has none."""
        if self._lease is None:
            raise RuntimeError("A replay has no lease: nothing is to be run.")
        return self._lease

    @property
    def replayed(self) -> bool:
        """Whether the result comes from the record, so that nothing is to be run."""
        return self._lease is None

    def complete(self, result: Any = None) -> None:
        """Give the result of the work; it is kept when the block ends."""
        if self.replayed:
            raise RuntimeError("This attempt is a replay: it has its result already.")
        self.done = True
        self.given = result

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
        self._lease = None
        self._outcome = Outcome(
            result=codecs.unpack(self.operation.codec, record.result),
            replayed=True,
            record_id=record.record_id,
            fencing_token=record.epoch,
            expires_at=record.expires_at,
        )

    def conclude(self, result: Any, *, stored: bool, expires_at: Any = None) -> None:
        """Answer with the result of this attempt's own work."""
        self._outcome = Outcome(
            result=result,
            replayed=False,
            record_id=self.lease.record_id,
            fencing_token=self.lease.fencing_token,
            expires_at=expires_at,
            stored=stored,
        )

    def note_commit(self) -> None:
        """Note that the transaction of the work has committed."""
        self.committed = True


class Engine:
    """Runs operations once, on one store."""

    def __init__(self, store: BaseStore, *, keeper: Keeper = keeper) -> None:
        self.store = store
        self.keeper = keeper

    def run(
        self,
        operation: Operation,
        work: Callable[[Lease], Any],
        on_error: Callable[[Exception], Any] | None = None,
    ) -> Outcome:
        """
        Run `work` once, or answer from the record.

        `on_error` may turn an exception of the work into an answer to keep: it returns the answer,
        raises Unkept, or raises what is to be passed on. Raises InProgress, FingerprintMismatch,
        LeaseLost, ResultTooLarge, ResultUnavailable, StoreError, and what the work raised.
        """
        with self.attempt(operation, on_error) as attempt:
            if not attempt.replayed:
                attempt.complete(work(attempt.lease))
        return attempt.outcome

    async def arun(self, operation: Operation, work: Callable[[Lease], Awaitable[Any]]) -> Outcome:
        """See `run`."""
        async with self.aattempt(operation) as attempt:
            if not attempt.replayed:
                attempt.complete(await work(attempt.lease))
        return attempt.outcome

    @contextmanager
    def attempt(
        self, operation: Operation, on_error: Callable[[Exception], Any] | None = None
    ) -> Iterator[Attempt]:
        """
        Open a block whose work runs once; see `run` for what it raises.

        With ``attempt.replayed`` there is nothing to do but to read ``attempt.result``.
        """
        attempt = Attempt(operation, operation.request())
        transaction, claimed = self._claim(attempt.request)
        if isinstance(claimed, Record):
            transaction.close()
            attempt.replay(claimed)
            yield attempt
            return
        attempt = Attempt(operation, attempt.request, claimed)
        error: BaseException | None = None
        try:
            with _holding(claimed), transaction:  # `single`: all of it is one transaction
                try:
                    with self._work(attempt):
                        with self._renewing(attempt):
                            yield attempt
                        self._complete(attempt, self._payload(attempt))
                except BaseException as raised:
                    error = self._end(attempt, raised, on_error)
        except BaseException as raised:  # out of the COMMIT of `single`
            error = error or self._settle_single(attempt, raised)
        if error is not None:
            raise error

    @asynccontextmanager
    async def aattempt(self, operation: Operation) -> AsyncIterator[Attempt]:
        """See `attempt`. Database work of the block goes through ``sync_to_async``."""
        attempt = Attempt(operation, operation.request())
        async with self._own_thread(attempt.request):
            transaction, claimed = await self._aclaim(attempt.request)
            if isinstance(claimed, Record):
                await transaction.aclose()
                attempt.replay(claimed)
                yield attempt
                return
            attempt = Attempt(operation, attempt.request, claimed)
            error: BaseException | None = None
            try:
                with _holding(claimed):
                    async with _to_the_end(transaction):
                        try:
                            async with _to_the_end(self._awork(attempt)):
                                with self._renewing(attempt):
                                    yield attempt
                                payload = await self._in_thread(self._payload, attempt)
                                await _finish(self._acomplete(attempt, payload))
                        except BaseException as raised:
                            error = await _finish(self._in_thread(self._end, attempt, raised))
            except BaseException as raised:  # out of the COMMIT of `single`
                error = error or await _finish(
                    self._in_thread(self._settle_single, attempt, raised)
                )
            if error is not None:
                raise error

    # The claim.

    def _claim(self, request: ClaimRequest) -> tuple[ExitStack, Lease | Record]:
        """Return the lease, or the record to replay, and the transaction of `single` around it."""
        single = request.transaction == "single"
        if single and self.store.writers_queue and (seen := self.store.get(request.record_id)):
            if decide(seen, request) is not Decision.CLAIM_AGAIN:
                return ExitStack(), _replayable(seen, request)
        for _ in range(CLAIM_TRIES):
            with suppress(ClaimAgain), ExitStack() as transaction:
                if single:
                    transaction.enter_context(self.store.atomic())
                claimed = self.store.claim(request)
                if isinstance(claimed, Record):
                    claimed = _replayable(claimed, request)
                return transaction.pop_all(), claimed
        raise InProgress

    async def _aclaim(self, request: ClaimRequest) -> tuple[AsyncExitStack, Lease | Record]:
        single = request.transaction == "single"
        if single and self.store.writers_queue:
            seen = await self.store.aget(request.record_id)
            if seen is not None and decide(seen, request) is not Decision.CLAIM_AGAIN:
                return AsyncExitStack(), _replayable(seen, request)
        for _ in range(CLAIM_TRIES):
            with suppress(ClaimAgain):
                async with AsyncExitStack() as transaction:
                    if single:
                        await transaction.enter_async_context(self.store.aatomic())
                    claimed = await self.store.aclaim(request)
                    if isinstance(claimed, Record):
                        claimed = _replayable(claimed, request)
                    return transaction.pop_all(), claimed
        raise InProgress

    # The work and its completion.

    def _work(self, attempt: Attempt) -> AbstractContextManager[Any]:
        if attempt.request.transaction == "separate":
            return nullcontext()
        return self._joined(attempt)

    @contextmanager
    def _joined(self, attempt: Attempt) -> Iterator[None]:
        """Open the block in which the work and its record commit, or roll back, together."""
        with self.store.atomic():
            self.store.committed(attempt.note_commit)
            self.store.fence(attempt.lease)
            yield

    def _awork(self, attempt: Attempt) -> AbstractAsyncContextManager[Any]:
        if attempt.request.transaction == "separate":
            return nullcontext()
        return self._ajoined(attempt)

    @asynccontextmanager
    async def _ajoined(self, attempt: Attempt) -> AsyncIterator[None]:
        async with self.store.aatomic():
            await self._in_thread(self.store.committed, attempt.note_commit)
            await self._in_thread(self.store.fence, attempt.lease)
            yield

    @contextmanager
    def _renewing(self, attempt: Attempt) -> Iterator[None]:
        """Keep the lease while the work runs; it leaves the keeper before its completion starts."""
        lease, policy = attempt.lease, attempt.operation.policy
        if policy.renew and lease.renewable:
            self.keeper.add(self.store, lease)
        attempt.phase = Phase.WORKING
        try:
            yield
        finally:
            self.keeper.remove(lease)

    def _payload(self, attempt: Attempt) -> bytes:
        """Return the envelope of the work's result; from here on the work is over."""
        attempt.phase = Phase.COMPLETING
        if not attempt.done:
            logger.warning(
                "The block of an attempt ended without complete(): record %s is released.",
                keys.short(attempt.lease.record_id),
            )
            raise Unkept("release")
        if attempt.request.transaction != "separate" and self.store.rolled_back():
            raise Unkept("fail", attempt.given)
        return self._pack(attempt, attempt.given)

    def _pack(self, attempt: Attempt, result: Any) -> bytes:
        """Return the envelope of an answer, and make the answer the attempt's outcome."""
        operation = attempt.operation
        try:
            payload = codecs.pack(
                operation.codec, result, max_bytes=operation.policy.max_result_bytes
            )
        except (ResultTooLarge, TypeError, ValueError) as error:
            if not operation.unstorable_ok:
                raise
            logger.warning(
                "Record %s is completed without its result: %s",
                keys.short(attempt.lease.record_id),
                error,
            )
            attempt.conclude(result, stored=False)
            attempt.payload = codecs.unavailable(operation.codec)
            return attempt.payload
        if not operation.codec.exact:
            result = codecs.unpack(operation.codec, payload)
        attempt.conclude(result, stored=True)
        attempt.payload = payload
        return payload

    def _complete(self, attempt: Attempt, payload: bytes) -> None:
        """Keep the payload: the owner's last write, conditional on its proof."""
        lease, policy = attempt.lease, attempt.operation.policy
        if attempt.operation.after_commit is not None:
            attempt.operation.after_commit(lambda: self._complete_late(attempt, payload))
            return
        try:
            expires_at = self.store.complete(lease, payload, retention=policy.retention)
        except StoreError as error:
            self._incomplete(attempt, error)
        else:
            attempt.conclude(
                attempt.outcome.result, stored=attempt.outcome.stored, expires_at=expires_at
            )

    async def _acomplete(self, attempt: Attempt, payload: bytes) -> None:
        lease, policy = attempt.lease, attempt.operation.policy
        if attempt.operation.after_commit is not None:
            await self._in_thread(self._complete, attempt, payload)
            return
        try:
            expires_at = await self.store.acomplete(lease, payload, retention=policy.retention)
        except StoreError as error:
            self._incomplete(attempt, error)
        else:
            attempt.conclude(
                attempt.outcome.result, stored=attempt.outcome.stored, expires_at=expires_at
            )

    def _incomplete(self, attempt: Attempt, error: StoreError) -> None:
        """Separate: the work is done and stands, so its caller gets the result (R60)."""
        if attempt.request.transaction != "separate":
            raise error
        logger.error(
            "Record %s could not be completed; its lease will lapse, and a retry will run again.",
            keys.short(attempt.lease.record_id),
            exc_info=error,
        )
        attempt.conclude(attempt.outcome.result, stored=False)

    def _complete_late(self, attempt: Attempt, payload: bytes) -> None:
        """Complete after the caller's transaction has committed: nobody is left to tell."""
        try:
            self.store.complete(
                attempt.lease, payload, retention=attempt.operation.policy.retention
            )
        except (LeaseLost, StoreError):
            logger.exception(
                "Record %s could not be completed after the commit.",
                keys.short(attempt.lease.record_id),
            )

    # The other endings. Each returns the exception to raise, or None if the outcome stands.

    def _end(
        self,
        attempt: Attempt,
        raised: BaseException,
        on_error: Callable[[Exception], Any] | None = None,
    ) -> BaseException | None:
        """The block was left with an exception, so what it did is rolled back (R57, R58, R60)."""
        if attempt.committed:  # an on_commit hook raised: the record is completed
            return raised
        if isinstance(raised, Unkept):
            return self._unkept(attempt, raised)
        if attempt.phase is Phase.WORKING and on_error and isinstance(raised, Exception):
            return self._answer(attempt, raised, on_error)
        if attempt.phase is Phase.COMPLETING and attempt.concluded:
            if isinstance(raised, LeaseLost):
                return self._lease_lost(attempt, raised)
            if attempt.request.transaction == "joined":
                return self._settle_joined(attempt, raised)
        self._try_to(self.store.fail, attempt, _error_text(raised))
        return raised

    def _answer(
        self, attempt: Attempt, raised: Exception, on_error: Callable[[Exception], Any]
    ) -> BaseException | None:
        """The work raised: keep the answer that the adapter makes of it, without the work."""
        try:
            answer = on_error(raised)
        except Unkept as unkept:
            return self._unkept(attempt, unkept)
        except Exception as unanswered:
            self._try_to(self.store.fail, attempt, _error_text(unanswered))
            return unanswered
        attempt.phase = Phase.COMPLETING
        attempt.kept_error = True
        try:
            self._complete(attempt, self._pack(attempt, answer))
        except LeaseLost as lost:
            return self._lease_lost(attempt, lost)
        except StoreError as error:
            if attempt.request.transaction == "single":
                raise  # this transaction is broken: `_settle_single` opens another
            return self._settle_joined(attempt, error)
        return None

    def _unkept(self, attempt: Attempt, unkept: Unkept) -> None:
        """The adapter's verdict on an answer that is not kept: it goes to this caller alone."""
        attempt.phase = Phase.UNKEPT
        attempt.conclude(unkept.result, stored=False)
        if unkept.verdict == "release":
            self._try_to(self.store.release, attempt)
        else:
            self._try_to(self.store.fail, attempt, "not kept")

    def _lease_lost(self, attempt: Attempt, lost: LeaseLost) -> BaseException | None:
        """The completion was refused. In `single` the record may have an answer meanwhile."""
        if attempt.request.transaction == "single":
            record = self.store.get(attempt.lease.record_id)
            if record and decide(record, attempt.request) is Decision.REPLAY:
                attempt.replay(record)
                return None
        return lost

    def _settle_joined(self, attempt: Attempt, raised: BaseException) -> BaseException | None:
        """
        The completion or its COMMIT failed, or its answer was lost.

        The truth comes from a conditional write under this attempt's token: a plain read could be
        ahead of a COMMIT that is still on its way.
        """
        lease = attempt.lease
        try:
            if isinstance(raised, StoreError):
                self.store.release(lease)
            else:
                self.store.fail(lease, _error_text(raised))
            record = self.store.get(lease.record_id)
        except StoreError as unknown:
            unknown.__cause__ = raised
            return unknown
        if record is None or (record.epoch, record.token) != (lease.fencing_token, lease.token):
            return LeaseLost()
        if record.state is State.IN_PROGRESS:
            return StoreError("Whether the work was committed is not known; its lease will lapse.")
        return None if record.state is State.COMPLETED else raised

    def _settle_single(self, attempt: Attempt, raised: BaseException) -> BaseException | None:
        """
        The one transaction of `single` failed, or the answer to its COMMIT was lost.

        A claim under the same token, in a new transaction, takes the same lock, and so tells
        whether the first one is still alive, has committed, or is gone.
        """
        if attempt.committed or attempt.request.transaction != "single" or not attempt.concluded:
            return raised
        if attempt.phase is Phase.UNKEPT:
            return None
        retention = attempt.operation.policy.retention
        try:
            with self.store.atomic():
                claimed = self.store.claim(attempt.request)
                if isinstance(claimed, Lease):  # nothing was committed
                    if attempt.kept_error and attempt.payload is not None:
                        self.store.complete(claimed, attempt.payload, retention=retention)
                        return None
                    self.store.fail(claimed, _error_text(raised))
                    return raised
            if claimed.token == attempt.request.token and claimed.state is State.COMPLETED:
                return None
            attempt.replay(_replayable(claimed, attempt.request))
        except (ClaimAgain, FingerprintMismatch, InProgress, LeaseLost, StoreError) as unknown:
            failure = StoreError("Whether the work was committed is not known; try again.")
            failure.__cause__ = unknown
            return failure
        return None

    def _try_to(self, end: Callable[..., None], attempt: Attempt, *arguments: Any) -> None:
        """End the lease; if that cannot be written, the lease lapses and masks nothing (R58)."""
        try:
            end(attempt.lease, *arguments)
        except StoreError:
            logger.exception(
                "The end of the lease on record %s could not be written; it will lapse.",
                keys.short(attempt.lease.record_id),
            )

    # Coroutines.

    @asynccontextmanager
    async def _own_thread(self, request: ClaimRequest) -> AsyncIterator[None]:
        """
        Give a coroutine that holds a transaction a thread, and so a connection, of its own.

        Without it all coroutines of a loop share one connection, and one's rollback would take
        another's rows. Inside a transaction that is already open its thread is the right one.
        """
        own = (
            request.transaction != "separate"
            and SyncToAsync.thread_sensitive_context.get(None) is None
            and not await self._in_thread(self.store.in_transaction)
        )
        if not own:
            yield
            return
        async with ThreadSensitiveContext():
            try:
                yield
            finally:
                await _finish(self._in_thread(self.store.idle))

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self.store.in_thread(function, *arguments)


@contextmanager
def _holding(lease: Lease) -> Iterator[None]:
    """Make `current()` give the lease, until the on_commit hooks of its transaction have run."""
    reset = _current.set(lease)
    try:
        yield
    finally:
        _current.reset(reset)


def _replayable(record: Record, request: ClaimRequest) -> Record:
    """Return the record if it is to be replayed; raise what it means otherwise."""
    decision = decide(record, request)
    if decision is Decision.REPLAY:
        return record
    if decision is Decision.MISMATCH:
        raise FingerprintMismatch
    if decision is Decision.CLAIM_AGAIN:
        raise ClaimAgain
    left = record.lease_left
    retry_after = 1 if left is None else min(max(math.ceil(left), 1), 30)
    raise InProgress(record=record, retry_after=retry_after, stale=decision is Decision.STALE)


def _error_text(error: BaseException) -> str:
    """Return what the record may say of an error: its type; its text may quote the payload."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


async def _finish(ending: Awaitable[T]) -> T:
    """Await `ending` to its end, also if this coroutine is cancelled meanwhile (R63)."""
    task = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:
            break
    if cancelled is not None:
        if not task.cancelled() and (error := task.exception()) is not None:
            cancelled.__cause__ = error
        raise cancelled
    return task.result()


@asynccontextmanager
async def _to_the_end(block: AbstractAsyncContextManager[Any]) -> AsyncIterator[None]:
    """Open `block` so that its exit is not cut short by a cancellation."""
    await block.__aenter__()
    try:
        yield
    except BaseException as error:
        if not await _finish(block.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        await _finish(block.__aexit__(None, None, None))
