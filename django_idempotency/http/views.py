"""The guard of plain Django views, for the decorator and the middleware."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import response_for_exception
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from django_idempotency.engine.operation import RollBack
from django_idempotency.http.atomic_requests import (
    AtomicRequests,
    atomic_aliases,
    exempt,
    refuse_coroutine,
)
from django_idempotency.http.calls import is_guarded_already, using
from django_idempotency.http.content import body_of, header_field
from django_idempotency.http.guard import Guard, answered_outside
from django_idempotency.http.plans import Declared, ViewPlan
from django_idempotency.policy import HTTPPolicy

__all__ = [
    "ViewGuard",
    "aguarded",
    "aunguarded",
    "exempt_of",
    "guarded",
    "outside_answer",
]

#: Django answers these with a 4xx: no work was done, so the key is free again (R15, R55).
_REFUSALS = (
    BadRequest,
    Http404,
    MultiPartParserError,
    PermissionDenied,
    SuspiciousOperation,
)


def guarded(
    declared: Declared,
    view: Callable[..., Any],
    request: HttpRequest,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    kind: type[ViewGuard] | None = None,
) -> HttpResponseBase:
    """Return the response of a view; its exceptions pass on unchanged."""
    if is_guarded_already(request):
        within: HttpResponseBase = view(request, *args, **kwargs)
        return within
    request.idempotency = None  # type: ignore[attr-defined]
    plan = declared.plan()
    if not plan.guards(request):
        with AtomicRequests(without=exempt_of(request)):
            unguarded: HttpResponseBase = view(request, *args, **kwargs)
        return unguarded
    keyed = plan.carries_key(request)
    return (kind or ViewGuard)(plan, view, request, args, kwargs, keyed=keyed).respond()


async def aguarded(
    declared: Declared,
    view: Callable[..., Any],
    request: HttpRequest,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    kind: type[ViewGuard] | None = None,
) -> HttpResponseBase:
    """See `guarded`: for a view that is a coroutine."""
    if is_guarded_already(request):
        within: HttpResponseBase = await view(request, *args, **kwargs)
        return within
    request.idempotency = None  # type: ignore[attr-defined]
    plan = declared.plan()
    if not plan.guards(request):
        return await aunguarded(plan, view, request, args, kwargs)
    keyed = header_field(request, plan.http_policy.header) is not None
    if not keyed:  # to look into a form may take the session, and so the database
        keyed = await sync_to_async(plan.carries_key, thread_sensitive=True)(request)
    return await (kind or ViewGuard)(plan, view, request, args, kwargs, keyed=keyed).arespond()


async def aunguarded(
    plan: ViewPlan,
    view: Callable[..., Any],
    request: HttpRequest,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> HttpResponseBase:
    """Await the view in the transaction that the policy gives it for ATOMIC_REQUESTS (R96)."""
    aliases = atomic_aliases(exempt_of(request))
    own = using(plan.store) if plan.policy.transaction in ("joined", "single") else set()
    refuse_coroutine({*exempt_of(request), *own})
    async with plan.engine.alone("joined" if own & {*aliases} else "separate"):
        response: HttpResponseBase = await view(request, *args, **kwargs)
    return response


class ViewGuard(Guard):
    """The guard of a plain view, or of the method of a class view."""

    def __init__(
        self,
        plan: ViewPlan,
        view: Callable[..., Any],
        request: HttpRequest,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        keyed: bool,
    ) -> None:
        super().__init__(plan, request, exempt=exempt_of(request), keyed=keyed)
        self._view = view
        self._arguments = args, kwargs

    def body(self) -> bytes:
        """See `GuardedCall.body`."""
        return body_of(self.request, self.http)

    def handle(self) -> HttpResponseBase:
        """See `GuardedCall.handle`."""
        args, kwargs = self._arguments
        return _rendered(_checked(self.request, self._view(self.request, *args, **kwargs)))

    async def ahandle(self) -> HttpResponseBase:
        """See `GuardedCall.handle`."""
        args, kwargs = self._arguments
        response: HttpResponseBase
        response = _checked(self.request, await self._view(self.request, *args, **kwargs))
        if callable(getattr(response, "render", None)):
            response = await sync_to_async(_rendered, thread_sensitive=True)(response)
        return response

    def on_exception(self, error: Exception) -> HttpResponseBase:
        """See `GuardedCall.on_exception`."""
        return outside_answer(self.request, self.http, error)


def outside_answer(request: HttpRequest, http: HTTPPolicy, error: Exception) -> HttpResponseBase:
    """
    Return Django's answer to an exception of the view, if the policy may keep it.

        Raises RollBack with the error, which then passes on, if the preset keeps no such answer.
    """
    if http.keep in ("default", "success"):
        refused = http.keep == "default" and isinstance(error, _REFUSALS)
        raise RollBack("release" if refused else "fail", error=error)
    return answered_outside(_rendered(response_for_exception(request, error)))


def exempt_of(request: HttpRequest) -> set[str]:
    """Return the aliases that the project itself exempts, on the view that the URLconf names."""
    match = request.resolver_match
    return exempt(match.func if match else None)


def _checked(request: HttpRequest, response: Any) -> Any:
    """Return a view's response, or raise Django's error for a view that returns none."""
    match = request.resolver_match
    view: Any = match.func if match else None
    BaseHandler().check_response(response, view, name=None if match else "The view")
    if not hasattr(response, "status_code"):
        raise TypeError(
            f"A view with @idempotent returned a {type(response).__name__}, not a response. On an "
            f"operation of django-ninja use idempotent of django_idempotency.contrib.ninja."
        )
    return response


def _rendered(response: Any) -> HttpResponseBase:
    """Return the response as Django sends it: a callback after it is rendered may replace it."""
    final: HttpResponseBase = response
    if callable(render := getattr(response, "render", None)):
        final = render()
    return final
