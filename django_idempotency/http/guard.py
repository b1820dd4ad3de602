"""The guard: from a request with a key to the one answer, for every kind of view."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from datetime import timedelta, timezone
from email.utils import format_datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.http.response import HttpResponseBase

from django_idempotency import keys
from django_idempotency.engine.attempt import Attempt
from django_idempotency.engine.operation import Operation, RollBack
from django_idempotency.engine.transactions import OpenTransactions
from django_idempotency.exceptions import (
    IdempotencyError,
    InvalidKey,
    KeyRequired,
    LeaseLost,
    ScopeMissing,
    StoreError,
)
from django_idempotency.http import keyless, scopes
from django_idempotency.http.atomic_requests import AtomicRequests, answering, atomic_aliases
from django_idempotency.http.calls import GuardedCall, leads_to_login, using
from django_idempotency.http.content import (
    ask,
    endpoint_of,
    fingerprint_of,
    form_key,
    header_field,
)
from django_idempotency.http.problems import problem_response, replay_refused
from django_idempotency.http.sessions import RequestState, leave_session
from django_idempotency.http.snapshot import LEFT_OUT, Snapshot, is_stream
from django_idempotency.logs import log_once, log_refusal
from django_idempotency.records import Outcome

__all__ = ["Guard", "answered_outside"]

_KIND = "http"
_OUTSIDE = "_idempotency_outside"
#: How long the second click on a form's button waits for the page of the first (R89).
_FORM_WAIT = timedelta(seconds=10)
_PREFER_WAIT = re.compile(r'(?:^|[,;\s])wait\s*=\s*"?(\d{1,6})', re.IGNORECASE)


class Guard(GuardedCall):
    """The guard of one request; a subclass for each kind of view says how its handler is called."""

    #: Whose key it is, where the policy does not say.
    default_scope: Callable[[Any], str] = staticmethod(scopes.user)
    key = ""
    kept = False
    #: The attempt whose handler was entered, once it was: its claim stands.
    begun: Attempt | None = None
    #: An error of the handler's own idempotent calls, which says nothing about this key.
    raised_by_handler: Exception | None = None
    #: What an on_commit hook raised after the work had committed.
    raised_by_hook: Exception | None = None
    #: The session and messages from before the claim, until they are restored.
    before: RequestState | None = None

    def respond(self) -> HttpResponseBase:
        """
        Return the response to a request to a guarded method.

        The handler's own the first time, its snapshot afterwards, and a problem where neither can
        be had. Without a key it is always the handler's own. An exception that the adapter does not
        answer passes on unchanged (R58).
        """
        if not self.keyed:
            return keyless.handle(self)
        try:
            operation = self.prepare(coroutine=False)
            try:
                with self.plan.engine.attempt(operation, self.on_error) as attempt:
                    if not attempt.replayed:
                        attempt.complete(self.work(attempt))
            finally:
                self.forget()
        except IdempotencyError as error:
            if self.runs_unguarded(error):
                ours = using(self.plan.store).difference(atomic_aliases(self.exempt))
                return _unguarded(keyless.handle(self, without=ours))
            return self.problem(error)
        return self.response(attempt)

    async def arespond(self) -> HttpResponseBase:
        """See `respond`: for a handler that is a coroutine."""
        if not self.keyed:
            return await keyless.ahandle(self)
        in_thread = sync_to_async(self.prepare, thread_sensitive=True)
        try:
            operation = await in_thread(coroutine=True)
            try:
                attempting = self.plan.engine.aattempt(operation, self.on_error, self.judge)
                async with attempting as attempt:
                    if not attempt.replayed:
                        attempt.complete(await self.awork(attempt))
            finally:
                self.forget()
        except IdempotencyError as error:
            if self.runs_unguarded(error):
                return _unguarded(await self.ahandle())
            return await sync_to_async(self.problem, thread_sensitive=True)(error)
        if self.http.replay_check is None:
            return self.response(attempt)
        return await sync_to_async(self.response, thread_sensitive=True)(attempt)

    # What the request says.

    def prepare(self, *, coroutine: bool) -> Operation:
        """Read the request; raise KeyRequired, InvalidKey or ScopeMissing."""
        plan = self.plan
        from_form = self._read_key()
        scope = self._scope(from_form=from_form)
        name = self.operation
        fingerprint = fingerprint_of(
            self.request, self.subject, plan.policy, self.http, self.body, name
        )
        open_transactions = OpenTransactions(plan.store)
        if coroutine:  # it may read the session from its database: never on the event loop
            self.before = RequestState(self.request)
        return plan.operation(
            kind=_KIND,
            scope=scope,
            key=self.key,
            name=name,
            fingerprint=fingerprint,
            codec=plan.codec,
            mode=self.mode(open_transactions, coroutine=coroutine),
            open_transactions=open_transactions,
            wait=self._wait(from_form=from_form),
            closes_connections=True,
            unstorable_ok=True,
            checks_replay=self.http.replay_check is not None,
        )

    def _read_key(self) -> bool:
        """Read the key; return whether it came in a form (R89)."""
        http, request = self.http, self.request
        field = header_field(request, http.header)
        bounds = {"min_length": http.key_min_length, "max_length": http.key_max_length}
        if field is not None:
            self.key = keys.parse(field, strict=http.strict_header, **bounds)
        elif self.plan.form and (value := form_key(request, http)) is not None:
            if not value.isascii():
                raise InvalidKey(
                    "The idempotency key must be ASCII, in a form as in a header.", code="not_ascii"
                )
            self.key = keys.check(value, **bounds)
        else:
            raise KeyRequired
        if http.key_validator is not None:
            _validate(self.key, http.key_validator)
        return field is None

    def _scope(self, *, from_form: bool) -> str:
        """Return whose key it is, by the policy; raise ScopeMissing for an anonymous caller."""
        scope = self.http.scope or (scopes.user_or_session if from_form else self.default_scope)
        found: str | None = ask("scope", scope, self.subject)
        if found is not None and not isinstance(found, str):
            raise TypeError(f"scope must return a str, not {type(found).__name__}.")
        if not found:  # one bucket for all who name nobody would show them each other's answers
            raise ScopeMissing("The scope of this request is empty.")
        if not self.http.scope_endpoint:
            return found
        endpoint = endpoint_of(self.request, self.plan.operation_name)
        return f"{len(endpoint)}:{endpoint}:{found}"

    def _wait(self, *, from_form: bool) -> timedelta:
        """How long this caller waits: the policy's time, or less if it prefers so (R51)."""
        wait = self.plan.policy.wait_or(_FORM_WAIT if from_form else timedelta(0))
        if not wait:  # no caller can have it wait longer
            return wait
        prefer = header_field(self.request, "Prefer")
        preferred = prefer and _PREFER_WAIT.search(prefer)
        return min(wait, timedelta(seconds=int(preferred[1]))) if preferred else wait

    # The work.

    def work(self, attempt: Attempt) -> HttpResponseBase:
        """Run the handler in the transactions that Django would have given it."""
        self._begin(attempt)
        ours, store = set(self.exempt), self.plan.store
        joined = attempt.request.transaction != "separate"
        if joined:
            ours |= using(store)  # open already: the store's own, around this
        requests = AtomicRequests(without=ours)
        try:
            with requests:
                try:
                    response = self.handle()
                except Exception as error:
                    self.raised_by_handler = error
                    raise
                self.judge(attempt, response)
                if requests:  # none commits without the others; the engine looks at a store's alone
                    doomed = joined and store.rolled_back()
                    if requests.rolled_back() or doomed:
                        deliberate = requests.rollback_is_deliberate() and (
                            store.rollback_is_deliberate() or not doomed
                        )
                        attempt.refuse_rollback(response, deliberate=deliberate)
        except Exception as error:
            if not requests.committed:
                attempt.rolled_back = bool(requests)
                raise
            self.raised_by_hook = error  # the work stands, so its answer is kept
        return response

    async def awork(self, attempt: Attempt) -> HttpResponseBase:
        """Await the handler: Django opens no transaction around a coroutine."""
        self._begin(attempt)
        try:
            return await self.ahandle()
        except Exception as error:
            self.raised_by_handler = error
            raise

    def _begin(self, attempt: Attempt) -> None:
        self.begun = attempt
        if self.before is None:
            self.before = RequestState(self.request)
        self.request.idempotency = attempt.lease  # type: ignore[attr-defined]

    def judge(self, attempt: Attempt, response: HttpResponseBase) -> None:
        """Take the verdict on a response that the handler returned; raise RollBack to roll back."""
        attempt.verdict = verdict = self.verdict(response)
        attempt.succeeded = response.status_code < 400
        self.kept = verdict == "keep"
        if verdict == "release" and leads_to_login(response):
            log_once(
                logging.WARNING,
                "%s redirects to LOGIN_URL, which is never kept: if it has done its work, a retry "
                "runs again.",
                self.operation,
            )
        if not self.commits(response, verdict):
            raise RollBack(verdict, response)

    def on_error(self, error: Exception) -> HttpResponseBase:
        """
        Let the adapter answer an exception, after the work was rolled back.

        Whatever it marks for rollback meanwhile is this block, never the caller's (R84).
        """
        if error is not self.raised_by_handler or self._is_own(error):
            raise error
        self.forget()
        with answering(without=self.exempt):
            response = self.on_exception(error)
        verdict = self.verdict(response, error)
        if verdict != "keep" and getattr(response, _OUTSIDE, False):
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
            or attempt.rollback_is_deliberate
            or self.before is None
        ):
            return
        self.before.restore()
        self.before = None

    # The answer.

    def runs_unguarded(self, error: IdempotencyError) -> bool:
        """Whether the handler is to run without a lease, since no store was reached (R61)."""
        at_claim = self.begun is None and isinstance(error, StoreError) and error.at_claim
        return at_claim and self.opens_for(error)

    def problem(self, error: IdempotencyError) -> HttpResponseBase:
        """Return what tells the client of an error of its key; raise the handler's own."""
        if not self._is_own(error):
            raise error
        response = problem_response(error, self.request, self.http, self.subject)
        if self.begun is not None:
            return response
        if isinstance(error, (InvalidKey, KeyRequired, ScopeMissing)):
            log_refusal(self.plan.alias, self.operation, error)
        else:  # another attempt may be at work
            leave_session(self.request, response)
        return response

    def _is_own(self, error: Exception) -> bool:
        """Whether the error is about this key, and not one of the work's other idempotent calls."""
        if self.begun is None:
            return True
        if error is self.raised_by_handler:
            return isinstance(error, LeaseLost) and self.begun.lease.lost
        return not _has_committed(self.begun)  # or else a hook of the work raised it

    def response(self, attempt: Attempt) -> HttpResponseBase:
        """Return the handler's response, or its replay."""
        if self.raised_by_hook is not None:
            raise self.raised_by_hook
        http, outcome = self.http, attempt.outcome
        response = self._replay(attempt, outcome) if outcome.replayed else outcome.result
        if self.kept and not outcome.stored:
            response["Idempotency-Stored"] = "false"
            if is_stream(response):
                log_once(
                    logging.WARNING,
                    "%s: the generator of its response runs after its record is completed. Even "
                    "if it breaks off, each retry gets 409 result_unavailable. Do the work before "
                    "the response is returned, and stream only what can be read again.",
                    self.operation,
                )
        elif outcome.expires_at is not None:
            expires_at = outcome.expires_at.astimezone(timezone.utc)
            response.headers["Idempotency-Expires"] = format_datetime(expires_at, usegmt=True)
            for name in getattr(response, LEFT_OUT, ()):
                log_once(
                    logging.INFO,
                    "Replays of %s leave out the header field %s.",
                    self.operation,
                    name,
                )
        if http.echo_key:
            response[http.header] = _quoted(self.key)
        return response

    def _replay(self, attempt: Attempt, outcome: Outcome) -> HttpResponseBase:
        snapshot = outcome.result
        assert isinstance(snapshot, Snapshot)  # noqa: S101
        if (check := self.http.replay_check) is not None and not self._may_see(attempt, check):
            response = replay_refused(self.request, self.http, self.subject)
        else:
            marked = ((self.http.replay_header, "true"),) if self.http.replay_header else ()
            response = snapshot.response(*marked, ("Cache-Control", "no-store"))
        if self.begun is None or attempt.rolled_back:  # or else work of this request stands
            leave_session(self.request, response)
        return response

    def _may_see(self, attempt: Attempt, check: Callable[..., bool] | str) -> bool:
        """Ask the policy's ``replay_check``, in transactions such as the handler had (R34)."""
        store = self.plan.store
        beside = using(store) if attempt.request.transaction != "separate" else ()
        seen = False
        try:
            with AtomicRequests(without=self.exempt, beside=beside):
                seen = bool(ask("replay_check", check, self.subject, attempt.record))
        finally:
            attempt.tell_replay(refused=not seen)
        return seen


def _unguarded(response: HttpResponseBase) -> HttpResponseBase:
    """Return the response of a handler that ran without a lease, and say so."""
    response["Idempotency-Stored"] = "false"
    return response


def answered_outside(response: HttpResponseBase) -> HttpResponseBase:
    """Mark an answer that Django gives outside of the view: unless it is kept, Django gives it."""
    setattr(response, _OUTSIDE, True)
    return response


def _has_committed(attempt: Attempt) -> bool:
    """Whether the work stands, or its error is kept; `single` commits without them, too."""
    kept = attempt.concluded and attempt.outcome.expires_at is not None
    return attempt.committed and (kept or not attempt.rolled_back)


def _validate(key: str, validator: Callable[[str], None] | str) -> None:
    """Apply the policy's ``key_validator`` (R10); raise InvalidKey."""
    if callable(validator):
        ask("key_validator", validator, key)
        return
    is_uuid = re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", key)
    if validator == "uuid" and not is_uuid:
        raise InvalidKey("The idempotency key must be a UUID.", code="not_uuid")
    if validator == "uuid7" and not (is_uuid and uuid.UUID(key).version == 7):
        raise InvalidKey("The idempotency key must be a UUID of version 7.", code="not_uuid7")


def _quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
