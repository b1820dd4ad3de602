"""The guard: from a request with a key to the one answer, for every kind of view."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import timezone
from email.utils import format_datetime
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from django_idempotency.context import running
from django_idempotency.engine.attempt import Attempt
from django_idempotency.engine.ending import RollBack, Verdict
from django_idempotency.engine.operation import OpenTransactions, Operation
from django_idempotency.exceptions import (
    IdempotencyError,
    InvalidKey,
    KeyRequired,
    LeaseLost,
    ScopeMissing,
    StoreError,
    Uncertain,
)
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.http.atomic_requests import answering, refuse_coroutine
from django_idempotency.http.content import ask, fingerprint_of, operation_of
from django_idempotency.http.handlers import ViewHandler, is_outside
from django_idempotency.http.key import key_of, scope_of, wait_of
from django_idempotency.http.plans import ViewPlan
from django_idempotency.http.problems import problem_of, problem_response, replay_refused
from django_idempotency.http.sessions import RequestState, leave_session
from django_idempotency.http.snapshot import LEFT_OUT, Snapshot, is_stream
from django_idempotency.http.verdicts import leads_to_login, verdict_on
from django_idempotency.logs import log_once, log_refusal, log_store_error
from django_idempotency.records import Outcome
from django_idempotency.transactions.aliases import AtomicBlocks

#: Where a request has the attempt that serves it.
_SERVING = "_idempotency_attempt"


class Guard:
    """The guard of one request to a guarded method, around what handles it."""

    key = ""
    kept = False
    #: The attempt whose handler was entered, once it was: its claim stands.
    begun: Attempt | None = None
    #: An error of the handler's own idempotent calls, which says nothing about this key.
    raised_by_handler: Exception | None = None
    #: The session and messages from before the claim, until they are restored.
    before: RequestState | None = None

    def __init__(
        self,
        plan: ViewPlan,
        request: HttpRequest,
        handler: ViewHandler,
        *,
        atomic: Sequence[str],
        keyed: bool,
    ) -> None:
        self.plan = plan
        self.http = plan.http_policy
        self.request = request
        self.handler = handler
        #: The aliases on which ATOMIC_REQUESTS gives the request a transaction.
        self.atomic = atomic
        #: Whether the request carries a key, or must carry one.
        self.keyed = keyed
        #: What is being done (R40).
        self.name = operation_of(request, plan.operation_name)

    def respond(self) -> HttpResponseBase:
        """
        Return the response to a request to a guarded method.

        The handler's own the first time, its snapshot afterwards, and a problem where neither can
        be had. Without a key it is always the handler's own. An exception that the adapter does not
        answer passes on unchanged (R58).
        """
        try:
            operation = self.operation(coroutine=False)
            while True:
                try:
                    with self.plan.engine.attempt(operation, self.on_error, self.judge) as attempt:
                        if not attempt.replayed:
                            self._begin(attempt)
                            try:
                                attempt.complete(self.handler.call())
                            except Exception as error:
                                self.raised_by_handler = error
                                raise
                    break
                except StoreError as error:
                    operation = self.without_store(operation, error)
                finally:
                    self.forget()
        except IdempotencyError as error:
            return self.handler.final(self.problem(error))
        return self.handler.final(self.response(attempt))

    async def arespond(self) -> HttpResponseBase:
        """See `respond`: for a handler that is a coroutine."""
        try:
            operation = await sync_to_async(self._operation_of_coroutine, thread_sensitive=True)()
            while True:
                attempting = self.plan.engine.aattempt(operation, self.on_error, self.judge)
                try:
                    async with attempting as attempt:
                        if not attempt.replayed:
                            self._begin(attempt)
                            try:
                                attempt.complete(await self.handler.acall())
                            except Exception as error:
                                self.raised_by_handler = error
                                raise
                    break
                except StoreError as error:
                    operation = self.without_store(operation, error)
                finally:
                    self.forget()
        except IdempotencyError as error:
            response = await sync_to_async(self.problem, thread_sensitive=True)(error)
            return await self.handler.afinal(response)
        if self.http.replay_check is None:
            response = self.response(attempt)
        else:
            response = await sync_to_async(self.response, thread_sensitive=True)(attempt)
        return await self.handler.afinal(response)

    def _operation_of_coroutine(self) -> Operation:
        # Both may read the session from its database: never on the event loop. The name that the
        # scope gives to it is part of what was before the work.
        operation = self.operation(coroutine=True)
        self.before = RequestState(self.request)
        return operation

    def without_store(self, operation: Operation, error: StoreError) -> Operation:
        """
        Return what runs without a lease in the place of an operation whose store is down (R61).

        Its work has a transaction on the store's database only if ATOMIC_REQUESTS says so; where
        that cannot be begun either, it has none. Raises `error` unless FAIL_OPEN allows it.
        """
        at_claim = self.begun is None and error.at_claim
        if not (at_claim and self.http.fail_open and error.unreachable):
            raise error
        using = self.plan.store.using
        if operation.recorded:
            return self.unrecorded(joined=using in self.atomic)
        log_store_error(self.plan.alias, self.name, error)
        return self.unrecorded(joined=False, without=(using,))

    # The operation.

    def operation(self, *, coroutine: bool) -> Operation:
        """
        Read the request; raise KeyRequired, InvalidKey or ScopeMissing.

        One without a key is an operation without a record: the same block, the same verdicts (R90).
        """
        plan, http, request = self.plan, self.http, self.request
        if not self.keyed:
            mode = self._mode(OpenTransactions(plan.store), coroutine=coroutine)
            return self.unrecorded(joined=mode != "separate")
        self.key, from_form = key_of(request, plan)
        scope = scope_of(request, plan, self.handler, from_form=from_form)
        body = partial(self.handler.body, http)
        fingerprint = fingerprint_of(
            request, self.handler.subject, plan.policy, http, body, self.name
        )
        open_transactions = OpenTransactions(plan.store)
        mode = self._mode(open_transactions, coroutine=coroutine)
        return plan.operation(
            kind="http",
            scope=scope,
            key=self.key,
            name=self.name,
            fingerprint=fingerprint,
            codec=plan.codec,
            mode=mode,
            open_transactions=open_transactions,
            aliases=self.aliases(joined=mode != "separate"),
            wait=wait_of(request, plan.policy, from_form=from_form),
            closes_connections=True,
            unstorable_ok=True,
            checks_replay=http.replay_check is not None,
        )

    def _mode(self, open_transactions: OpenTransactions, *, coroutine: bool) -> str:
        """Return how the work commits; refuse a coroutine that would lose its ATOMIC_REQUESTS."""
        plan = self.plan
        joins = not coroutine and (plan.joins or plan.store.using in self.atomic)
        mode = open_transactions.mode(plan.policy, joins=joins)
        if coroutine:
            refuse_coroutine(self.atomic, plan.store.using if mode != "separate" else None)
        return mode

    def aliases(self, *, joined: bool, without: Collection[str | None] = ()) -> list[str]:
        """Return the aliases of ATOMIC_REQUESTS on which the guard opens transactions."""
        own = self.plan.store.using if joined else None
        return [alias for alias in self.atomic if alias != own and alias not in without]

    def unrecorded(self, *, joined: bool, without: Collection[str | None] = ()) -> Operation:
        """Return the operation without a record, whose work may have the store's transaction."""
        return self.plan.unrecorded(
            self.name,
            transaction="joined" if joined else "separate",
            aliases=self.aliases(joined=joined, without=without),
        )

    # The work.

    def _begin(self, attempt: Attempt) -> None:
        self.begun = attempt
        if self.before is None:
            self.before = RequestState(self.request)
        setattr(self.request, _SERVING, attempt)
        self.request.idempotency = attempt.held  # type: ignore[attr-defined]

    def judge(self, response: HttpResponseBase) -> Verdict:
        """Return the verdict on the handler's response; raise RollBack to roll its work back."""
        verdict = verdict_on(self.http, response)
        self.kept = verdict == "keep"
        if self.key and verdict == "release" and leads_to_login(response):
            log_once(
                logging.WARNING,
                "%s redirects to LOGIN_URL, which is never kept: if it has done its work, a retry "
                "runs again.",
                self.name,
            )
        # What a callable ``keep`` fails is rolled back, unless it is a problem of an inner guard.
        fails = verdict == "fail" and callable(self.http.keep) and problem_of(response) is None
        if fails or response.status_code >= 500:  # R57
            raise RollBack(verdict, response)
        return Verdict(verdict, succeeded=response.status_code < 400)

    def on_error(self, error: Exception) -> HttpResponseBase:
        """
        Let the adapter answer an exception, after the work was rolled back.

        Whatever it marks for rollback meanwhile is this block, never the caller's (R84).
        """
        if self.begun is None or self.begun.held is None:
            raise error  # who calls the view without a key answers it
        if error is not self.raised_by_handler or self._is_own(error):
            raise error
        self.forget()
        with answering(self.atomic):
            response = self.handler.answer(error, self.http)
        verdict = verdict_on(self.http, response, error)
        if verdict != "keep" and is_outside(response):
            raise RollBack(verdict, error=error)
        if verdict != "keep":
            raise RollBack(verdict, response)
        self.kept = True
        return response

    def forget(self) -> None:
        """Take back what work that was rolled back has left in the request (R92)."""
        attempt = self.begun
        if (
            attempt is None
            or not attempt.rolled_back
            or attempt.ending.deliberate
            or self.before is None
        ):
            return
        self.before.restore()
        self.before = None

    # The answer.

    def problem(self, error: IdempotencyError) -> HttpResponseBase:
        """Return what tells the client of an error of its key; raise the handler's own."""
        if not self._is_own(error):
            raise error
        if not self.keyed or (self.begun is not None and not self.begun.operation.recorded):
            if not isinstance(error, SessionLost):
                raise error
            log_store_error(self.plan.alias, self.name, error)
            return problem_response(error, self.request, self.http, self.handler.subject)
        response = problem_response(error, self.request, self.http, self.handler.subject)
        if self.http.echo_key:
            self._echo(response)
        if self.begun is not None:
            return response
        if isinstance(error, (InvalidKey, KeyRequired, ScopeMissing)):
            log_refusal(self.plan.alias, self.name, error)
        else:  # another attempt may be at work
            leave_session(self.request, response)
        return response

    def _is_own(self, error: Exception) -> bool:
        """Whether the error is about this key, and not one of the work's other idempotent calls."""
        if self.begun is None:
            return True
        if error is self.begun.blocks.raised_by_hook:
            return False
        if error is self.raised_by_handler:
            lease = self.begun.held
            if isinstance(error, (StoreError, Uncertain)):  # of a step, or of another record
                return error.record_id == self.begun.record_id
            return isinstance(error, LeaseLost) and lease is not None and lease.lost
        return not _has_committed(self.begun)  # or else a hook of the work raised it

    def response(self, attempt: Attempt) -> HttpResponseBase:
        """Return the handler's response, or its replay."""
        outcome = attempt.outcome
        if not attempt.operation.recorded:
            unguarded: HttpResponseBase = outcome.result
            if self.keyed:
                unguarded["Idempotency-Stored"] = "false"
            if self.http.echo_key:
                self._echo(unguarded)
            return unguarded
        response = self._replay(attempt, outcome) if outcome.replayed else outcome.result
        if self.kept and not outcome.stored:
            response["Idempotency-Stored"] = "false"
            if is_stream(response):
                log_once(
                    logging.WARNING,
                    "%s: the generator of its response runs after its record is completed. Even "
                    "if it breaks off, each retry gets 409 result_unavailable. Do the work before "
                    "the response is returned, and stream only what can be read again.",
                    self.name,
                )
        elif outcome.expires_at is not None:
            expires_at = outcome.expires_at.astimezone(timezone.utc)
            response.headers["Idempotency-Expires"] = format_datetime(expires_at, usegmt=True)
            for name in getattr(response, LEFT_OUT, ()):
                log_once(
                    logging.INFO,
                    "Replays of %s leave out the header field %s.",
                    self.name,
                    name,
                )
        if self.http.echo_key:
            self._echo(response)
        return response

    def _echo(self, response: HttpResponseBase) -> None:
        """Repeat the key, if it was valid (R16): problems are matched to requests by it, too."""
        if self.key:
            response[self.http.header] = _quoted(self.key)

    def _replay(self, attempt: Attempt, outcome: Outcome) -> HttpResponseBase:
        snapshot = outcome.result
        assert isinstance(snapshot, Snapshot)  # noqa: S101
        if (check := self.http.replay_check) is not None and not self._may_see(attempt, check):
            response = replay_refused(self.request, self.http, self.handler.subject)
        else:
            marked = ((self.http.replay_header, "true"),) if self.http.replay_header else ()
            response = snapshot.response(*marked, ("Cache-Control", "no-store"))
        if self.begun is None or attempt.rolled_back:  # or else work of this request stands
            leave_session(self.request, response)
        return response

    def _may_see(self, attempt: Attempt, check: Callable[..., bool] | str) -> bool:
        """Ask the policy's ``replay_check``, in transactions such as the handler had (R34)."""
        using = self.plan.store.using
        joined = attempt.request.transaction != "separate"
        own = (using,) if joined and using is not None else ()
        aliases = [*own, *self.aliases(joined=joined)]
        seen = False
        try:
            with AtomicBlocks(aliases, of_store=own):
                seen = bool(ask("replay_check", check, self.handler.subject, attempt.record))
        finally:
            attempt.tell_replay(refused=not seen)
        return seen


def is_guarded_already(request: Any) -> bool:
    """
    Return whether a guard around this one serves the request and guards alone (R17).

    A request object that is served a second time, in a test for example, has the attempt of the
    first.
    """
    return getattr(request, _SERVING, None) in running()


def _has_committed(attempt: Attempt) -> bool:
    """Whether the work stands, or its error is kept; `single` commits without them, too."""
    kept = attempt.concluded and attempt.outcome.expires_at is not None
    return attempt.blocks.committed and (kept or not attempt.rolled_back)


def _quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
