"""What serves a guarded request: how each kind of view is called, and answers its exceptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import response_for_exception
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from django_idempotency.engine.ending import RollBack
from django_idempotency.http import scopes
from django_idempotency.http.content import body_of
from django_idempotency.policy import HTTPPolicy

#: Django answers these with a 4xx: no work was done, so the key is free again (R15, R55).
_REFUSALS = (
    BadRequest,
    Http404,
    MultiPartParserError,
    PermissionDenied,
    SuspiciousOperation,
)
_OUTSIDE = "_idempotency_outside"


@dataclass(eq=False, repr=False)
class ViewHandler:
    """
    The handler of one request, as the guard calls it.

    It is a plain view, or the method of a class view; a subclass is for another kind of view.
    """

    called: Callable[..., Any]
    #: The request for the policy's callables: the one that the view gets.
    subject: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    #: Whose key it is, where the policy does not say.
    default_scope = staticmethod(scopes.user)

    def unguarded(self) -> Any:
        """Return what the view returns: for a coroutine function what is to be awaited."""
        return self.called(self.subject, *self.args, **self.kwargs)

    def body(self, http: HTTPPolicy) -> bytes:
        """Return the parts of the body in the fingerprint; see `content.body_of`."""
        return body_of(self.subject, http)

    def call(self) -> HttpResponseBase:
        """Call the handler; return its response, finalised and rendered."""
        response = self.called(self.subject, *self.args, **self.kwargs)
        return _rendered(_checked(self.subject, response))

    async def acall(self) -> HttpResponseBase:
        """See `call`: for a handler that is a coroutine."""
        response: HttpResponseBase = _checked(self.subject, await self.unguarded())
        if callable(getattr(response, "render", None)):
            response = await sync_to_async(_rendered, thread_sensitive=True)(response)
        return response

    def answer(self, error: Exception, http: HTTPPolicy) -> HttpResponseBase:
        """Turn an exception of the handler into a response, finalised and rendered, or raise it."""
        return outside_answer(self.subject, http, error)

    def final(self, response: HttpResponseBase) -> HttpResponseBase:
        """Return the guard's response as the framework is to send it."""
        return response

    async def afinal(self, response: HttpResponseBase) -> HttpResponseBase:
        """See `final`: for a handler that is a coroutine."""
        return response


def outside_answer(request: HttpRequest, http: HTTPPolicy, error: Exception) -> HttpResponseBase:
    """
    Return Django's answer to an exception of the view, if the policy may keep it.

    Raises RollBack with the error, which then passes on, if the preset keeps no such answer.
    """
    if http.keep in ("default", "success"):
        refused = http.keep == "default" and isinstance(error, _REFUSALS)
        raise RollBack("release" if refused else "fail", error=error)
    response = _rendered(response_for_exception(request, error))
    setattr(response, _OUTSIDE, True)
    return response


def is_outside(response: HttpResponseBase) -> bool:
    """Whether it is an `outside_answer`: unless it is kept, Django gives it itself."""
    return getattr(response, _OUTSIDE, False)


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
