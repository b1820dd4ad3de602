"""One request to a guarded method: how its work commits, and the verdict on its answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch

from django_idempotency.context import running
from django_idempotency.engine.transactions import OpenTransactions
from django_idempotency.exceptions import StoreError
from django_idempotency.http.atomic_requests import atomic_aliases, refuse_coroutine
from django_idempotency.http.content import ask, operation_of
from django_idempotency.http.plans import ViewPlan
from django_idempotency.http.problems import problem_of
from django_idempotency.policy import HTTPPolicy
from django_idempotency.stores.base import BaseStore

__all__ = [
    "GuardedCall",
    "is_guarded_already",
    "leads_to_login",
    "served_alone",
    "using",
    "verdict_for",
]

#: The request is served without a key, by a guard around this code.
_ALONE = "_idempotency_alone"
#: Nothing was executed: the corrected request may use the key (R55).
_RELEASED = frozenset({400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429})


class GuardedCall:
    """
    One request to a guarded method, as its adapter describes it.

    A subclass for each kind of view says how its handler is called.
    """

    def __init__(
        self, plan: ViewPlan, request: HttpRequest, *, exempt: Collection[str], keyed: bool
    ) -> None:
        self.plan = plan
        self.http = plan.http_policy
        self.request = request
        #: The request for the policy's callables: the one that the view gets.
        self.subject: Any = request
        #: Aliases that the view exempts from ATOMIC_REQUESTS.
        self.exempt = exempt
        #: Whether the request carries a key, or must carry one.
        self.keyed = keyed

    @property
    def operation(self) -> str:
        """What is being done (R40)."""
        return operation_of(self.request, self.plan.operation_name)

    def body(self) -> bytes:
        """Return the parts of the body in the fingerprint; see `content.body_of`."""
        raise NotImplementedError

    def handle(self) -> HttpResponseBase:
        """Call the handler; return its response, finalised and rendered."""
        raise NotImplementedError

    async def ahandle(self) -> HttpResponseBase:
        """See `handle`: for a handler that is a coroutine."""
        raise NotImplementedError

    def on_exception(self, error: Exception) -> HttpResponseBase:
        """Turn an exception of the handler into a response, finalised and rendered, or raise it."""
        raise NotImplementedError

    def opens_for(self, error: Exception) -> bool:
        """Whether the handler may run without the store, since that was not reached (R61)."""
        return self.http.fail_open and isinstance(error, StoreError) and error.unreachable

    def mode(self, open_transactions: OpenTransactions, *, coroutine: bool) -> str:
        """Return how the work commits; refuse a coroutine that would lose its ATOMIC_REQUESTS."""
        plan = self.plan
        joins = not coroutine and (
            plan.joins or bool(using(plan.store) & {*atomic_aliases(self.exempt)})
        )
        mode = open_transactions.mode(plan.policy, joins=joins)
        if coroutine:
            own = using(plan.store) if mode != "separate" else ()
            refuse_coroutine({*self.exempt, *own})
        return mode

    def verdict(self, response: HttpResponseBase, error: Exception | None = None) -> str:
        """
        Return "keep", "release" or "fail" for the handler's response, or what `error` became.

        What a guard within the work, of another key or request, says of its key is no answer of
        the work's: what may be sent again may be claimed again, with the same fingerprint.
        """
        if (problem := problem_of(response)) is not None:
            return "fail" if problem.retryable else "release"
        return verdict_for(self.http, response, error)

    def commits(self, response: HttpResponseBase, verdict: str) -> bool:
        """Whether the work of a response that was returned commits (R57)."""
        failed = verdict == "fail" and callable(self.http.keep) and problem_of(response) is None
        return response.status_code < 500 and not failed


def using(store: BaseStore) -> set[str]:
    """Return the database alias of the store, in a set; none for a store that is no database."""
    return set() if store.using is None else {store.using}


@contextmanager
def served_alone(request: HttpRequest) -> Iterator[None]:
    """Mark the request as served without a key: a guard within leaves the work to it (R17)."""
    setattr(request, _ALONE, True)
    try:
        yield
    finally:
        delattr(request, _ALONE)


def is_guarded_already(request: Any) -> bool:
    """
    Return whether a guard around this one serves the request and guards alone (R17).

    A request object that is served a second time, in a test for example, has the lease of the
    first.
    """
    if getattr(request, _ALONE, False):
        return True
    lease = getattr(request, "idempotency", None)
    return lease is not None and any(attempt.held is lease for attempt in running())


def verdict_for(policy: HTTPPolicy, response: HttpResponseBase, error: BaseException | None) -> str:
    """Return "keep", "release" or "fail" for a response by the policy's ``keep`` (R55, R56)."""
    keep, status = policy.keep, response.status_code
    if callable(keep):
        verdict: str = ask("keep", keep, response, error)
        if verdict not in ("keep", "release", "fail"):
            raise ValueError(f"keep must return 'keep', 'release' or 'fail', not {verdict!r}.")
        return verdict
    if leads_to_login(response):
        return "release"
    if keep == "stripe":
        return "keep"
    if keep == "success":
        return "keep" if status < 400 else "fail"
    if status >= 500:
        return "fail"
    return "release" if status in _RELEASED else "keep"


def leads_to_login(response: HttpResponseBase) -> bool:
    """Whether a response redirects to LOGIN_URL: a login may give the caller other rights (R34)."""
    if response.status_code != 302 or not settings.LOGIN_URL:
        return False
    try:
        login = urlsplit(resolve_url(settings.LOGIN_URL))
        target = urlsplit(response.headers.get("Location", ""))
    except (NoReverseMatch, ValueError):
        return False
    return target.path == login.path and login.netloc in ("", target.netloc)
