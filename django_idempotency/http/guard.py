"""The guard: from a request with a key to the one answer, for every kind of view."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from django_idempotency import keys, transactions
from django_idempotency.attempts import Attempt, Operation, Unkept
from django_idempotency.conf import engine_for
from django_idempotency.exceptions import (
    IdempotencyError,
    InvalidKey,
    KeyRequired,
    LeaseLost,
    ScopeMissing,
)
from django_idempotency.http import scopes
from django_idempotency.http.atomic_requests import answering, atomic_requests
from django_idempotency.http.content import fingerprints_of, operation_of
from django_idempotency.http.problems import problem_response, replay_refused
from django_idempotency.http.snapshot import Snapshot, SnapshotCodec
from django_idempotency.policy import HTTPPolicy, Policy
from django_idempotency.records import Lease
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

__all__ = ["GuardedCall", "guard", "verdict_for"]

_KIND = "http"
#: Nothing was executed: the corrected request may use the key (R55).
_RELEASED = frozenset({400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429})


@dataclass(frozen=True)
class GuardedCall:
    """One request on its way to a handler, as its adapter describes it."""

    request: HttpRequest
    #: What the policy's callables get: the request as the view knows it.
    subject: Any
    store: str
    policy: Policy
    http: HTTPPolicy
    #: What of the body the fingerprint covers; see `content.body_of`.
    body: bytes = field(repr=False)
    #: Call the handler; return its response, finalised and rendered.
    handle: Callable[[], HttpResponseBase]
    #: Turn an exception of the handler into a response, finalised and rendered, or raise it.
    on_exception: Callable[[Exception], HttpResponseBase]
    #: Aliases that the view exempts from ATOMIC_REQUESTS.
    exempt: Collection[str] = ()


def guard(call: GuardedCall) -> HttpResponseBase:
    """
    Return the response to a request that carries a key, or should.

    The handler's own the first time, its snapshot afterwards, and a problem where neither can be
    had. An exception that the adapter does not answer passes on unchanged (R58).
    """
    return _Guard(call).answer()


class _Guard:
    def __init__(self, call: GuardedCall) -> None:
        self.call = call
        self.kept = False
        #: An error of the handler's own idempotent calls, which says nothing about this key.
        self.raised_by_handler: Exception | None = None
        #: What an on_commit hook raised after the work had committed.
        self.raised_by_hook: Exception | None = None

    def answer(self) -> HttpResponseBase:
        call = self.call
        try:
            key = self._key()
            engine = engine_for(call.store)
            operation = self._operation(key, engine.store)
            with engine.attempt(operation, self._on_error) as attempt:
                if not attempt.replayed:
                    attempt.complete(self._work(attempt.lease, operation, engine.store))
        except IdempotencyError as error:
            if error is self.raised_by_handler and not isinstance(error, LeaseLost):
                raise
            return problem_response(error, call.request, call.http, call.subject)
        if self.raised_by_hook is not None:
            raise self.raised_by_hook
        response = self._replay(attempt) if attempt.replayed else self._first(attempt)
        if call.http.echo_key:
            response[call.http.header] = _quoted(key)
        return response

    # What the request says.

    def _key(self) -> str:
        http = self.call.http
        field = self.call.request.headers.get(http.header)
        if field is None:
            raise KeyRequired
        key = keys.parse(
            field,
            strict=http.strict_header,
            min_length=http.key_min_length,
            max_length=http.key_max_length,
        )
        _validate(key, http.key_validator)
        return key

    def _operation(self, key: str, store: BaseStore) -> Operation:
        call = self.call
        name = operation_of(call.request)
        scope = self._scope(name)
        return Operation(
            record_id=keys.record_id(_KIND, scope, key),
            scope=scope,
            key=key,
            name=name,
            fingerprints=fingerprints_of(
                call.request, call.subject, call.policy, call.http, call.body
            ),
            policy=call.policy,
            codec=SnapshotCodec(call.http.replay_headers, call.policy.max_result_bytes),
            transaction=transactions.mode_for(call.policy, store),
            unstorable_ok=True,
            caller=transactions.of_caller(store),
        )

    def _scope(self, name: str) -> str:
        scope = self.call.http.scope or scopes.user
        compute = import_string(scope) if isinstance(scope, str) else scope
        found: str = compute(self.call.subject)
        if not isinstance(found, str):
            raise TypeError(f"scope must return a str, not {type(found).__name__}.")
        if not found:  # one bucket for all who name nobody would show them each other's answers
            raise ScopeMissing("The scope of this request is empty.")
        return f"{len(name)}:{name}:{found}" if self.call.http.scope_endpoint else found

    # The work.

    def _work(self, lease: Lease, operation: Operation, store: BaseStore) -> HttpResponseBase:
        """Run the handler in the transactions that Django would have given it."""
        self.call.request.idempotency = lease  # type: ignore[attr-defined]
        ours = set(self.call.exempt)
        if operation.transaction != "separate" and isinstance(store, DatabaseStore):
            ours.add(store.using)  # open already: the store's own, around this
        try:
            with atomic_requests(without=ours) as requests:
                try:
                    response = self.call.handle()
                except Exception as error:
                    self.raised_by_handler = error
                    raise
                response = self._judged(response, None)
                if requests.doomed:
                    raise Unkept("fail", response)  # the answer to work that is rolled back
        except Exception as error:
            if not requests.committed:
                raise
            self.raised_by_hook = error  # the work stands, so its answer is kept
        return response

    def _on_error(self, error: Exception) -> HttpResponseBase:
        """
        Let the adapter answer an exception, after the work was rolled back.

        Whatever it marks for rollback meanwhile is this block, never the caller's (R84).
        """
        if error is not self.raised_by_handler or isinstance(error, LeaseLost):
            raise error
        with answering(without=self.call.exempt):
            response = self.call.on_exception(error)
        return self._judged(response, error)

    def _judged(self, response: HttpResponseBase, error: Exception | None) -> HttpResponseBase:
        """Return the response if it is to be kept; raise Unkept if not."""
        verdict = verdict_for(self.call.http, response, error)
        if verdict != "keep":
            raise Unkept(verdict, response)
        self.kept = True
        return response

    # The answer.

    def _first(self, attempt: Attempt) -> HttpResponseBase:
        response: HttpResponseBase = attempt.result
        if self.kept and not attempt.outcome.stored:
            response["Idempotency-Stored"] = "false"
        return response

    def _replay(self, attempt: Attempt) -> HttpResponseBase:
        call, snapshot = self.call, attempt.result
        assert isinstance(snapshot, Snapshot)  # noqa: S101
        check = call.http.replay_check
        if check is not None:
            allowed = import_string(check) if isinstance(check, str) else check
            if not allowed(call.subject, attempt.record):
                return replay_refused(call.request, call.http, call.subject)
        response = snapshot.response()
        if call.http.replay_header:
            response[call.http.replay_header] = "true"
        response["Cache-Control"] = "no-store"
        return response


def verdict_for(policy: HTTPPolicy, response: HttpResponseBase, error: BaseException | None) -> str:
    """Return "keep", "release" or "fail" for a response by the policy's ``keep`` (R55, R56)."""
    keep, status = policy.keep, response.status_code
    if callable(keep):
        verdict = keep(response, error)
        if verdict not in ("keep", "release", "fail"):
            raise ValueError(f"keep must return 'keep', 'release' or 'fail', not {verdict!r}.")
        return verdict
    if keep == "success":
        return "keep" if status < 400 else "fail"
    if status >= 500:
        return "fail"
    return "release" if status in _RELEASED else "keep"


def _validate(key: str, validator: Callable[[str], None] | str | None) -> None:
    """Apply the policy's ``key_validator`` (R10); raise InvalidKey."""
    if validator is None:
        return
    if callable(validator):
        validator(key)
        return
    name = {"uuid": "UUID", "uuid7": "UUID of version 7"}[validator]
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", key):
        raise InvalidKey(f"The idempotency key must be a {name}.")
    if validator == "uuid7" and uuid.UUID(key).version != 7:
        raise InvalidKey(f"The idempotency key must be a {name}.")


def _quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
