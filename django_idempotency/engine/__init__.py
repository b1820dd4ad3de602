"""
The main path: claim, work, complete, or an answer from the record.

    adapter: key, scope, operation, fingerprint, codec
        -> Engine.run -> store.claim -> work -> codecs.pack -> store.complete -> Outcome
    adapter: Outcome -> response / task result

`Engine.attempt` is that path as one block, `run` calls it, and `aattempt` and `arun` are the same
for coroutines. `claims.decide` alone says what a record means to a new attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from types import TracebackType
from typing import Any

from asgiref.sync import SyncToAsync, sync_to_async

from django_idempotency import keys, signals
from django_idempotency.claims import ClaimAgain, ClaimRequest
from django_idempotency.engine.attempt import Attempt, Phase
from django_idempotency.engine.cancellation import closing, finish, to_the_end
from django_idempotency.engine.endings import Endings
from django_idempotency.engine.operation import Operation, RollBack
from django_idempotency.engine.renewal import LeaseRenewer, lease_renewer
from django_idempotency.engine.threads import own_thread
from django_idempotency.engine.transactions import connections_to_let_go, let_connections_go
from django_idempotency.engine.waiting import Poller, Waiter, poller
from django_idempotency.exceptions import InProgress, StoreError
from django_idempotency.leases import Lease
from django_idempotency.observers import logger
from django_idempotency.records import Outcome, Record
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database.carried import Session, carry, sessions_here

__all__ = ["Attempt", "Engine", "Operation"]

#: How often a claim that lost a race is sent again before the answer is "in progress".
CLAIM_TRIES = 5
#: The block around a claim and its work where they are not one transaction.
_NO_TRANSACTION = nullcontext()

#: A transaction, a savepoint, or nothing around the work.
AnyBlock = AbstractContextManager[Any]
AnyAsyncBlock = AbstractAsyncContextManager[Any]


class Engine:
    """Runs operations once, on one store."""

    def __init__(
        self,
        store: BaseStore,
        *,
        renewer: LeaseRenewer = lease_renewer,
        poller: Poller = poller,
    ) -> None:
        self.store = store
        self.renewer = renewer
        self.poller = poller
        self.endings = Endings(store)

    def run(
        self,
        operation: Operation,
        work: Callable[[Lease], Any],
        on_error: Callable[[Exception], Any] | None = None,
    ) -> Outcome:
        """
        Run `work` once, or answer from the record.

        `on_error` may turn an exception of the work into an answer to keep: it returns the answer,
        raises RollBack, or raises what is to be passed on. Raises InProgress, FingerprintMismatch,
        LeaseLost, ResultTooLarge, ResultUnavailable, StoreError, WorkRolledBack,
        and what the work raised.
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
        attempt = Attempt(operation, self.store)
        with attempt:
            transaction, claimed = self._claim_or_wait(attempt)
            if isinstance(claimed, Lease):
                attempt.won(claimed)
                error: BaseException | None = None
                try:
                    with transaction:  # `single`: all of it is one transaction
                        try:
                            if claimed.takeover or signals.claimed.receivers:
                                attempt.tell_claim()
                            with self._work(attempt):
                                if operation.transaction == "joined":
                                    self.store.fence(claimed)
                                with _Renewal(self, attempt):
                                    yield attempt
                                    self._take_result(attempt)
                                self.endings.complete(attempt)
                        except BaseException as raised:
                            error = self.endings.end(attempt, raised, on_error)
                            self._ended(attempt)
                except BaseException as raised:  # out of the COMMIT of `single`
                    if error is None:
                        error = self.endings.settle_single(attempt, raised)
                if error is not None:
                    raise error
                return
            with transaction:
                attempt.replay(claimed)
        yield attempt

    @asynccontextmanager
    async def aattempt(
        self,
        operation: Operation,
        on_error: Callable[[Exception], Any] | None = None,
        judge: Callable[[Attempt, Any], None] | None = None,
    ) -> AsyncIterator[Attempt]:
        """
        See `attempt`. Database work of the block goes through ``sync_to_async``.

        `judge` takes the verdict on the result, on the thread of the work's connection; it may
        raise RollBack.
        """
        if operation.policy.deadline is None:
            attempt = Attempt(operation, self.store)
        else:  # a callable of the project's, which may read the database
            attempt = await sync_to_async(Attempt)(operation, self.store)
        async with AsyncExitStack() as thread, attempt:
            transaction, claimed = await self._aclaim_or_wait(attempt, thread)
            if isinstance(claimed, Lease):
                attempt.won(claimed)
                error: BaseException | None = None
                try:
                    async with closing(transaction):
                        try:
                            if claimed.takeover or signals.claimed.receivers:
                                await finish(sync_to_async(attempt.tell_claim)())
                            async with to_the_end(self._awork(attempt)):
                                if operation.transaction == "joined":
                                    await finish(sync_to_async(self.store.fence)(claimed))
                                with _Renewal(self, attempt):
                                    yield attempt
                                    await finish(sync_to_async(self._take_result)(attempt, judge))
                                await finish(self.endings.acomplete(attempt))
                        except BaseException as raised:
                            try:
                                ending = self.endings.aend(attempt, raised, on_error)
                                error = await finish(ending)
                                self._ended(attempt)
                            except asyncio.CancelledError as again:
                                error = again  # the ending is written, and is to commit
                except BaseException as raised:  # out of the COMMIT of `single`
                    if error is None:
                        settling = sync_to_async(self.endings.settle_single)(attempt, raised)
                        error = await finish(settling)
                if error is not None:
                    raise error
                return
            async with closing(transaction):
                attempt.replay(claimed)
        yield attempt

    # The claim.

    def _claim_or_wait(self, attempt: Attempt) -> tuple[AnyBlock, Lease | Record]:
        """Claim, as often as the wait of the operation allows while another attempt works."""
        operation, seen = attempt.operation, None
        waiter: Waiter | None = None
        while True:
            try:
                return self._claim(attempt, seen)
            except StoreError as error:
                error.at_claim = waiter is None or waiter.fresh
                raise
            except InProgress as busy:
                if waiter is None:
                    waiter = operation.waiter()
                    waiter.place = None if busy.record is None else busy.record.place
                if busy.stale or not waiter.goes_on(busy.record):
                    raise
            sessions = self._let_go(operation)
            try:
                seen = self.poller.wait(self.store, waiter)
            finally:
                carry(sessions)

    async def _aclaim_or_wait(
        self, attempt: Attempt, thread: AsyncExitStack
    ) -> tuple[AnyAsyncBlock, Lease | Record]:
        """See `_claim_or_wait`; `thread` is that of the work, and none while it waits."""
        operation, seen = attempt.operation, None
        waiter: Waiter | None = None
        while True:
            try:
                return await self._aclaim(attempt, seen, thread)
            except StoreError as error:
                error.at_claim = waiter is None or waiter.fresh
                raise
            except InProgress as busy:
                if waiter is None:
                    waiter = operation.waiter()
                    waiter.place = None if busy.record is None else busy.record.place
                if busy.stale or not waiter.goes_on(busy.record):
                    raise
            await thread.aclose()
            alone, sessions = await sync_to_async(self._let_go_of_caller)(operation)
            try:
                seen = await self.poller.await_(self.store, waiter, alone=alone)
            finally:
                if sessions:
                    await sync_to_async(carry)(sessions)

    def _let_go_of_caller(self, operation: Operation) -> tuple[bool, list[Session]]:
        """See `_let_go`; return whether the thread's transaction alone has the record, too."""
        # Below `async_to_sync` another coroutine may be reading on its caller's connection.
        in_context = SyncToAsync.thread_sensitive_context.get(None) is not None
        sessions: list[Session] = []
        if operation.closes_connections or in_context:
            sessions = self._let_go(operation)
        return self.store.in_transaction(), sessions

    def _let_go(self, operation: Operation) -> list[Session]:
        """Let the thread's connections go; return the sessions that those after them need (R98)."""
        close = operation.closes_connections
        going = connections_to_let_go(close=close)
        variables = getattr(self.store, "session_variables", ())
        sessions = sessions_here(self.store.using, variables, going)
        let_connections_go(close=close)
        return sessions

    def _claim(self, attempt: Attempt, seen: Record | None) -> tuple[AnyBlock, Lease | Record]:
        """
        Return the transaction of `single`, which is open, and the lease or the record to replay.

        A record that was `seen` meanwhile needs no claim if it answers.
        """
        request = attempt.request
        if seen is not None and attempt.is_answered_by(seen):
            return _NO_TRANSACTION, attempt.replayable(seen)
        single = request.transaction == "single"
        if single:
            seen = self._look_before_single(request)
            if seen is not None and attempt.is_answered_by(seen):
                return _NO_TRANSACTION, attempt.replayable(seen)
        for _ in range(CLAIM_TRIES):
            try:
                if not single:
                    return _NO_TRANSACTION, attempt.usable(self.store.claim(attempt.request))
                with ExitStack() as transaction:
                    transaction.enter_context(self.store.atomic(committed=attempt.note_commit))
                    claimed = attempt.usable(self.store.claim(attempt.request))
                    return transaction.pop_all(), claimed
            except ClaimAgain:
                continue
        raise InProgress

    async def _aclaim(
        self, attempt: Attempt, seen: Record | None, thread: AsyncExitStack
    ) -> tuple[AnyAsyncBlock, Lease | Record]:
        request, operation = attempt.request, attempt.operation
        if seen is not None and attempt.is_answered_by(seen):
            return _NO_TRANSACTION, attempt.replayable(seen)
        if request.transaction != "separate":
            own = own_thread(self.store, of_request=operation.closes_connections)
            await thread.enter_async_context(own)
        single = request.transaction == "single"
        if single:
            seen = await sync_to_async(self._look_before_single)(request)
            if seen is not None and attempt.is_answered_by(seen):
                return _NO_TRANSACTION, attempt.replayable(seen)
        for _ in range(CLAIM_TRIES):
            try:
                if not single:
                    claimed = await self._aclaim_or_give_back(attempt.request)
                    return _NO_TRANSACTION, attempt.usable(claimed)
                async with AsyncExitStack() as transaction:
                    block = to_the_end(self.store.aatomic(committed=attempt.note_commit))
                    await transaction.enter_async_context(block)
                    claimed = attempt.usable(await self._aclaim_or_give_back(attempt.request))
                    return transaction.pop_all(), claimed
            except ClaimAgain:
                continue
        raise InProgress

    def _look_before_single(self, request: ClaimRequest) -> Record | None:
        """Read the record, where the store looks first: on the thread of the connection."""
        return self.store.get(request.record_id) if self.store.looks_before_single else None

    async def _aclaim_or_give_back(self, request: ClaimRequest) -> Lease | Record:
        """Claim; if the coroutine is cancelled meanwhile, a claim that was won is given back."""
        claim = asyncio.ensure_future(self.store.aclaim(request))
        try:
            return await finish(claim)
        except asyncio.CancelledError:
            if claim.cancelled() or claim.exception() is not None:
                raise
            lease = claim.result()
            if isinstance(lease, Lease) and request.transaction != "single":
                await finish(self.endings.agive_back(lease))
            raise

    # The work and its completion.

    def _work(self, attempt: Attempt) -> AnyBlock:
        """Return the block of the work: that in which it and its record commit together, if any."""
        match attempt.request.transaction:
            case "joined":
                return self.store.atomic(committed=attempt.note_commit)
            case "single":
                return self.store.atomic()  # a savepoint
        outer = attempt.operation.outer
        return _NO_TRANSACTION if outer is None else outer

    def _awork(self, attempt: Attempt) -> AnyAsyncBlock:
        match attempt.request.transaction:
            case "joined":
                return self.store.aatomic(committed=attempt.note_commit)
            case "single":
                return self.store.aatomic()
        outer = attempt.operation.outer
        return _NO_TRANSACTION if outer is None else _asynchronous(outer)

    def renew(self, attempt: Attempt) -> None:
        """Keep the lease from now on, where the policy says so and the store can."""
        lease, policy, outer = attempt.lease, attempt.operation.policy, attempt.operation.outer
        if policy.renew and policy.deadline is None and lease.renewable:
            wanted = None if outer is None else outer.is_open
            self.renewer.add(self.store, lease, wanted=wanted)

    def _ended(self, attempt: Attempt) -> None:
        """Go on renewing where the answer of an error, too, waits for the caller's commit (R94)."""
        if attempt.kept_error and attempt.operation.outer is not None:
            self.renew(attempt)

    def _take_result(
        self, attempt: Attempt, judge: Callable[[Attempt, Any], None] | None = None
    ) -> None:
        """Take the work's result, and the verdict on it; from here on the work is over."""
        if judge is not None and attempt.has_result:
            judge(attempt, attempt.work_result)
        attempt.phase = Phase.COMPLETING
        if not attempt.has_result:
            logger.warning(
                "The block of an attempt ended without complete(): record %s is released.",
                keys.short(attempt.lease.record_id),
            )
            raise RollBack("release")
        joined = attempt.request.transaction != "separate"
        around = self.store if joined else attempt.operation.outer
        if around is not None and around.rolled_back():
            attempt.refuse_rollback(attempt.work_result, deliberate=around.rollback_is_deliberate())
        if attempt.verdict == "keep":
            attempt.pack(attempt.work_result)
        else:
            attempt.ending = "released" if attempt.verdict == "release" else "failed"
            attempt.conclude(attempt.work_result, stored=False)

    # Coroutines.

    @asynccontextmanager
    async def alone(
        self, transaction: str, *, committed: Callable[[], None] | None = None
    ) -> AsyncIterator[None]:
        """Open the block of work without a key: the transaction of `aattempt` alone."""
        if transaction == "separate":
            yield
            return
        async with (
            own_thread(self.store, of_request=True),
            to_the_end(self.store.aatomic(committed=committed)),
        ):
            yield


class _Renewal:
    """
    The block of the work: its lease is renewed, and no longer when its completion starts.

    A completion that waits for the caller's commit is still to come, so the lease is kept for
    as long as that transaction is open.
    """

    def __init__(self, engine: Engine, attempt: Attempt) -> None:
        self._engine = engine
        self._attempt = attempt

    def __enter__(self) -> None:
        self._engine.renew(self._attempt)
        self._attempt.phase = Phase.WORKING

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        attempt = self._attempt
        waits = attempt.operation.outer is not None and attempt.verdict == "keep"
        if exc_type is not None or not waits:
            self._engine.renewer.remove(attempt.lease)


@asynccontextmanager
async def _asynchronous(block: AbstractContextManager[None]) -> AsyncIterator[None]:
    with block:
        yield
