"""
The main path: claim, work, complete, or an answer from the record.

    adapter: key, scope, operation, fingerprint, codec
        -> Engine.run -> store.claim -> work -> codecs.pack -> store.complete -> Outcome
    adapter: Outcome -> response / task result

An attempt has three steps, which are plain functions: it claims (`_claim`), opens the block of its
work (`_open`), and ends (`_end`). `Engine.attempt` calls them around the work. For a coroutine
`Engine.aattempt` does the same on a thread, the first two in one hop. `claims.decide` alone says
what a record means to a new attempt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import connections

from django_idempotency import keys, signals
from django_idempotency.claims import ClaimAgain
from django_idempotency.engine.attempt import NO_RESULT, Attempt, Phase
from django_idempotency.engine.ending import RollBack, Verdict, ending_of, refuse_rollback
from django_idempotency.engine.operation import Operation
from django_idempotency.engine.renewal import LeaseRenewer, lease_renewer
from django_idempotency.engine.settling import ask_for_answer, settle, settle_raised, settle_single
from django_idempotency.engine.threads import StoreThreads, finish, own_thread
from django_idempotency.engine.waiting import Poller, Waiter, poller
from django_idempotency.exceptions import InProgress
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.leases import Lease
from django_idempotency.observers import logger
from django_idempotency.records import Outcome, Record
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database.carried import (
    Session,
    carry,
    carry_later,
    drop,
    let_go,
)
from django_idempotency.transactions.connections import connections_to_let_go
from django_idempotency.transactions.state import is_rolled_back

__all__ = ["Attempt", "Engine", "Operation"]

#: How often a claim that lost a race is sent again before the answer is "in progress".
CLAIM_TRIES = 5


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
        #: Where coroutines call a store that is no database.
        self._threads = StoreThreads() if store.using is None else None

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
        self,
        operation: Operation,
        on_error: Callable[[Exception], Any] | None = None,
        judge: Callable[[Any], Verdict] | None = None,
    ) -> Iterator[Attempt]:
        """
        Open a block whose work runs once; see `run` for what it raises.

        With ``attempt.replayed`` there is nothing to do but to read ``attempt.result``.

        `judge` returns the verdict on the result, within the transactions of the work; it may
        raise RollBack.
        """
        attempt = Attempt(operation, self.store)
        with attempt:
            raised: BaseException | None = None
            try:
                self._begin(attempt)
                if attempt.phase is not Phase.CLAIMING:
                    yield attempt
            except BaseException as error:
                if attempt.phase is Phase.CLAIMING:
                    raise
                raised = error
            if attempt.phase is not Phase.CLAIMING:
                failure = self._end(attempt, raised, on_error, judge)
                if failure is not None:
                    raise failure
        if attempt.blocks.raised_by_hook is not None:
            raise attempt.blocks.raised_by_hook
        if attempt.phase is Phase.CLAIMING:
            yield attempt

    @asynccontextmanager
    async def aattempt(
        self,
        operation: Operation,
        on_error: Callable[[Exception], Any] | None = None,
        judge: Callable[[Any], Verdict] | None = None,
    ) -> AsyncIterator[Attempt]:
        """
        See `attempt`. Database work of the block goes through ``sync_to_async``.

        `judge` runs on the thread of the work's connection. A cancellation interrupts no step
        (R63).
        """
        if operation.policy.deadline is None:
            attempt = Attempt(operation, self.store)
        else:  # a callable of the project's, which may read the database
            attempt = await sync_to_async(Attempt)(operation, self.store)
        attempt.of_coroutine = True
        async with AsyncExitStack() as thread, attempt:
            raised: BaseException | None = None
            try:
                await self._abegin(attempt, thread)
                if attempt.phase is not Phase.CLAIMING:
                    yield attempt
            except BaseException as error:
                if attempt.phase is Phase.CLAIMING:
                    raise
                raised = error
            if attempt.phase is not Phase.CLAIMING:
                failure = await finish(self._aend(attempt, raised, on_error, judge))
                if failure is not None:
                    raise failure
        if attempt.phase is Phase.CLAIMING:
            yield attempt

    # The claim.

    def _begin(self, attempt: Attempt) -> None:
        """Claim and open, or take the record's answer: as often as the attempt may wait for it."""
        seen = None
        while True:
            try:
                self._claim(attempt, seen)
                break
            except InProgress as busy:
                waiter = self._waiter(attempt, busy)
            sessions = self._let_go(attempt.operation)
            try:
                seen = self.poller.wait(self.store, waiter)
            except BaseException:
                self._come_back(attempt.operation, sessions, failed=True)
                raise
            self._come_back(attempt.operation, sessions)
        if attempt.phase is not Phase.CLAIMING:
            self._open(attempt)

    async def _abegin(self, attempt: Attempt, thread: AsyncExitStack) -> None:
        """See `_begin`; `thread` is that of the work, and none while it waits."""
        seen = None
        while True:
            try:
                await self._aclaim(attempt, thread, seen)
                return
            except InProgress as busy:
                waiter = self._waiter(attempt, busy)
            await thread.aclose()
            sessions, alone = await sync_to_async(self._let_go_of_caller)(attempt.operation)
            come_back = sync_to_async(self._come_back)
            try:
                seen = await self.poller.await_(self.store, waiter, alone=alone)
            except BaseException:
                if sessions:
                    await finish(come_back(attempt.operation, sessions, failed=True))
                raise
            if sessions:
                await finish(come_back(attempt.operation, sessions))

    async def _aclaim(self, attempt: Attempt, thread: AsyncExitStack, seen: Record | None) -> None:
        """Claim and open, or take the record's answer, on the thread where the store is called."""
        if seen is not None and attempt.take_seen(seen):
            return
        if attempt.is_bare:
            attempt.phase = Phase.WORKING
        elif self._threads is not None:
            await finish(self._threads.call(self._claim, attempt, None))
            lease = attempt.held
            if lease is not None and (lease.takeover or signals.claimed.receivers):
                await finish(sync_to_async(self._open)(attempt))  # which tells of the claim
            elif lease is not None:
                self._open(attempt)
        else:
            if attempt.request.transaction != "separate":
                of_request = attempt.operation.closes_connections
                await thread.enter_async_context(own_thread(self.store, of_request=of_request))
            await finish(sync_to_async(self._claim_and_open)(attempt))

    def _claim_and_open(self, attempt: Attempt) -> None:
        self._claim(attempt, None)
        if attempt.phase is not Phase.CLAIMING:
            self._open(attempt)

    def _waiter(self, attempt: Attempt, busy: InProgress) -> Waiter:
        """Return what to wait with for the attempt that is `busy`; raise that if time is over."""
        if attempt.is_within_itself:
            raise InProgress(
                "The attempt that is in progress is that of your own outer call, which waits for "
                "this one. Give the inner call another key, such as lease.derive_key().",
                record=busy.record,
                retry_after=busy.retry_after,
                stale=busy.stale,
            ) from busy
        waiter = attempt.waiter
        if waiter is None:
            waiter = attempt.waiter = attempt.operation.waiter()
            waiter.place = None if busy.record is None else busy.record.place
        if busy.stale or not waiter.goes_on(busy.record):
            raise busy
        return waiter

    def _let_go_of_caller(self, operation: Operation) -> tuple[list[Session], bool]:
        """See `_let_go`; return, too, whether the thread's transaction alone has the record."""
        sessions: list[Session] = []
        # Below `async_to_sync` another coroutine may be reading on its caller's connection.
        in_context = SyncToAsync.thread_sensitive_context.get(None) is not None
        if operation.closes_connections or in_context:
            sessions = self._let_go(operation)
        return sessions, self.store.in_transaction()

    def _let_go(self, operation: Operation) -> list[Session]:
        """Let the thread's connections go; return the sessions for those after them (R98)."""
        going = connections_to_let_go(close=operation.closes_connections)
        sessions = let_go(going, self.store.using, self.store.session_variables)
        carry_later(sessions)  # to other coroutines that connect meanwhile, too
        return sessions

    def _come_back(
        self, operation: Operation, sessions: list[Session], *, failed: bool = False
    ) -> None:
        """
        Open the connections again that were let go, with their sessions; raise SessionLost.

        If the wait has `failed`, that is what is raised: a request or a task then opens them if it
        needs them, and its end forgets the sessions. Nothing tells of the end of others.
        """
        ends = operation.closes_connections
        if failed and ends:
            return
        try:
            carry(sessions)
        except SessionLost:
            if not ends:
                drop(sessions)
            if not failed:
                raise

    def _claim(self, attempt: Attempt, seen: Record | None) -> None:
        """
        Take the lease, or the answer of the record; leave the transaction of `single` open.

        A record that was read meanwhile, `seen`, or before `single`, needs no claim if it answers.
        """
        if not attempt.operation.recorded:
            attempt.phase = Phase.OPENING
            return
        single = attempt.request.transaction == "single"
        if single and self.store.looks_before_single:
            seen = self.store.get(attempt.request.record_id)
        if seen is not None and attempt.take_seen(seen):
            return
        for _ in range(CLAIM_TRIES):
            with suppress(ClaimAgain), ExitStack() as transaction:
                if single:
                    block = self.store.atomic(committed=attempt.blocks.note_commit)
                    transaction.enter_context(block)
                attempt.take(self.store.claim(attempt.request))
                if attempt.held is not None:  # or else it ends at once: the record answers
                    attempt.blocks.whole = transaction.pop_all()
                return
        raise InProgress

    # The work.

    def _open(self, attempt: Attempt) -> None:
        """Open the block in which the work and its record commit together; keep the lease."""
        lease, work = attempt.held, attempt.blocks.work
        if lease is not None and (lease.takeover or signals.claimed.receivers):
            attempt.report.claimed(lease)
        match attempt.request.transaction:
            case "joined":
                work.enter_context(self.store.atomic(committed=attempt.blocks.note_commit))
                if lease is not None:
                    self.store.fence(lease)
            case "single":
                work.enter_context(self.store.atomic())  # a savepoint
            case _:
                if attempt.operation.outer is not None:
                    work.enter_context(attempt.operation.outer)
        if attempt.operation.aliases:
            attempt.blocks.beside.__enter__()
        self.renew(attempt)
        if lease is not None and lease.steps is not None:
            lease.steps.notes.renew = partial(self.renew, attempt)  # each note is a new beginning
        attempt.phase = Phase.WORKING

    def renew(self, attempt: Attempt) -> None:
        """Keep the lease from now on, where the policy says so and the store can."""
        lease, policy, outer = attempt.held, attempt.operation.policy, attempt.operation.outer
        if lease is not None and policy.renew and policy.deadline is None and lease.renewable:
            wanted = None if outer is None else outer.is_open
            self.renewer.add(self.store, lease, wanted=wanted)

    # The end.

    def _end(
        self,
        attempt: Attempt,
        raised: BaseException | None,
        on_error: Callable[[Exception], Any] | None = None,
        judge: Callable[[Any], Verdict] | None = None,
    ) -> BaseException | None:
        """
        Complete the record, or end the lease, with the blocks of the work; commit or roll back.

        `raised` is what left the work. Returns what to raise, None if there is an outcome.
        """
        outer, error = attempt.operation.outer, None
        try:
            with attempt.blocks.whole:  # `single`: all of it is one transaction
                try:
                    with attempt.blocks.work:
                        self._end_work(attempt, raised, judge)
                        settle(attempt)
                except BaseException as raised_in_block:
                    error = settle_raised(attempt, raised_in_block, on_error)
                    if attempt.ending.keeps and outer is not None:
                        self.renew(attempt)  # here, too
        except BaseException as raised_by_commit:  # of `single`
            if error is None:
                error = settle_single(attempt, raised_by_commit)
        return error

    def _end_work(
        self,
        attempt: Attempt,
        raised: BaseException | None,
        judge: Callable[[Any], Verdict] | None,
    ) -> None:
        """Take the ending of the work; commit what is beside the store; let the lease be."""
        waits, lease = False, attempt.held
        if lease is not None and lease.steps is not None:
            lease.steps.notes.close()
        try:
            verdict = None
            try:
                with ExitStack() as beside:
                    if attempt.operation.aliases:
                        beside.push(attempt.blocks.beside)
                    if raised is not None:
                        raise raised
                    if attempt.concluded is None:
                        verdict = self._verdict(attempt, judge)
            except Exception as error:
                if not attempt.blocks.beside.committed:
                    raise
                # The work stands, so its answer is kept (R58).
                attempt.blocks.raised_by_hook = error
            if verdict is not None:
                self._conclude(attempt, verdict)
            # Its completion is to come with the caller's commit (R94).
            waits = attempt.operation.outer is not None and attempt.ending.keeps
        finally:
            if not waits and lease is not None:
                self.renewer.remove(lease)

    async def _aend(
        self,
        attempt: Attempt,
        raised: BaseException | None,
        on_error: Callable[[Exception], Any] | None,
        judge: Callable[[Any], Verdict] | None,
    ) -> BaseException | None:
        """See `_end`: the project's code runs on the thread of the work's connection."""
        if attempt.is_bare:
            return self._end(attempt, raised)
        if self._threads is None or attempt.operation.outer is not None:
            return await sync_to_async(self._end)(attempt, raised, on_error, judge)
        raised = await sync_to_async(self._judge)(attempt, raised, on_error, judge)
        return await self._threads.call(self._end, attempt, raised)

    def _judge(
        self,
        attempt: Attempt,
        raised: BaseException | None,
        on_error: Callable[[Exception], Any] | None,
        judge: Callable[[Any], Verdict] | None,
    ) -> BaseException | None:
        """Take the ending of work without a transaction; return what ends it without an answer."""
        if raised is None:
            try:
                self._conclude(attempt, self._verdict(attempt, judge))
            except BaseException as refused:
                raised = refused
        return None if raised is None else ask_for_answer(attempt, raised, on_error)

    def _verdict(self, attempt: Attempt, judge: Callable[[Any], Verdict] | None) -> Verdict:
        """Return the verdict on the result of the work, which is over; raise what undoes it."""
        verdict = Verdict()
        if judge is not None:
            verdict = judge(attempt.returned)
        elif attempt.held is None:  # nothing is asked of work that is not guarded
            return verdict
        attempt.phase = Phase.COMPLETING
        if attempt.returned is NO_RESULT:
            logger.warning(
                "The block of an attempt ended without complete(): record %s is %s.",
                keys.short(attempt.lease.record_id),
                "failed, since it has noted steps" if attempt.has_notes else "released",
            )
            raise RollBack("release")
        joined, alias = attempt.request.transaction != "separate", self.store.using
        if joined and alias is not None and (attempt.held is None or attempt.operation.aliases):
            is_rolled_back(connections[alias])  # raises what no completion would tell in time
        around: list[Any] = [self.store if joined else attempt.operation.outer]
        if attempt.operation.aliases:
            around.append(attempt.blocks.beside)
        doomed = [block for block in around if block is not None and block.rolled_back()]
        if doomed:  # none commits without the others (R91)
            deliberate = all(block.rollback_is_deliberate() for block in doomed)
            refuse_rollback(attempt.name, attempt.returned, verdict, deliberate=deliberate)
        return verdict

    def _conclude(self, attempt: Attempt, verdict: Verdict) -> None:
        """Take what the work returned as the outcome, and the ending that the verdict makes."""
        if attempt.held is None:
            attempt.conclude(attempt.returned, stored=False)
        elif verdict.says == "keep":
            attempt.ending = ending_of(verdict, attempt.pack(attempt.returned))
        else:
            attempt.end_without_answer(ending_of(verdict))
            attempt.conclude(attempt.returned, stored=False)
