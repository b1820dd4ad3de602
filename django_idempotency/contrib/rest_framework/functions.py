"""Functions with ``@idempotent`` below ``@api_view``, of Django REST framework and of adrf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from django.http.response import HttpResponseBase
from rest_framework.request import Request

from django_idempotency.contrib.rest_framework.handler import RestHandler
from django_idempotency.engine.operation import OpenTransactions
from django_idempotency.http.atomic_requests import atomic_of
from django_idempotency.http.guard import Guard
from django_idempotency.http.plans import Declared, ViewPlan
from django_idempotency.policy import HTTPPolicy


def guarded_function(
    declared: Declared,
    function: Callable[..., Any],
    request: Request,
    /,
    *args: Any,
    **kwargs: Any,
) -> HttpResponseBase:
    """
    Answer for a function below ``@api_view``.

    With ATOMIC_REQUESTS Django's own transaction is open around it: claim, work and completion are
    part of it then, and an answer that was raised is not kept.
    """
    plan = _plan_of_function(declared, request)
    if not plan.guards(request._request):
        return cast("HttpResponseBase", function(request, *args, **kwargs))
    within = not OpenTransactions(plan.store).may_wait
    kind = _HandlerWithin if within else RestHandler
    return _guard_of_function(kind, plan, function, request, args, kwargs).respond()


async def aguarded_function(
    declared: Declared,
    function: Callable[..., Any],
    request: Request,
    /,
    *args: Any,
    **kwargs: Any,
) -> HttpResponseBase:
    """See `guarded_function`: for a coroutine below adrf's ``@api_view``."""
    plan = _plan_of_function(declared, request)
    if not plan.guards(request._request):
        return cast("HttpResponseBase", await function(request, *args, **kwargs))
    return await _guard_of_function(RestHandler, plan, function, request, args, kwargs).arespond()


def _plan_of_function(declared: Declared, request: Request) -> ViewPlan:
    request._request.idempotency = None  # type: ignore[attr-defined]
    return replace(declared.plan(), form=False)


def _guard_of_function(
    kind: type[RestHandler],
    plan: ViewPlan,
    function: Callable[..., Any],
    request: Request,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Guard:
    view: Any = (request.parser_context or {})["view"]
    atomic = plan.atomic(atomic_of(request._request))
    keyed = plan.carries_key(request._request)
    handler = kind(function, request, args, kwargs, view)
    return Guard(plan, request._request, handler, atomic=atomic, keyed=keyed)


class _HandlerWithin(RestHandler):
    """A function within Django's own transaction, which DRF marks for rollback when it answers."""

    def answer(self, error: Exception, http: HTTPPolicy) -> HttpResponseBase:
        """Let the error leave the transaction."""
        raise error
