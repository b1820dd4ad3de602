"""The guard of a class view: around the method's handler, inside the checks of `dispatch` (R34)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper, wraps
from types import CodeType
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views import View

from django_idempotency.http.atomic_requests import AtomicRequests
from django_idempotency.http.calls import is_guarded_already
from django_idempotency.http.plans import Declared
from django_idempotency.http.views import aguarded, aunguarded, exempt_of, guarded
from django_idempotency.observers import logger
from django_idempotency.policy import UNSAFE_METHODS

__all__ = ["calls_handler", "guarded_as_view", "guarded_dispatch"]

#: The attribute of a request in which a guard waits for `dispatch` of a class.
_WAITING = "_idempotency_waiting"
#: The attribute of a guarded handler that says what guards it.
_AROUND = "_idempotency_around"


@dataclass(frozen=True)
class _Around:
    """A guard around the handler of one view object."""

    declared: Declared
    handler: Any
    #: Empty until the handler is called.
    called: list[bool]


def guarded_dispatch(
    declared: Declared, view: View, dispatch: Callable[..., Any]
) -> Callable[..., Any]:
    """
    Return the bound `dispatch` of a class view with the guard around the handler that it calls.

    So the checks of LoginRequiredMixin and similar mixins run on each request, replays included. A
    method that the view lacks, or that is not guarded, has no claim.
    """
    if view.view_is_async:

        @wraps(dispatch)
        async def adispatch(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if is_guarded_already(request):
                return await dispatch(request, *args, **kwargs)
            called = _guard_handler(declared, view, request, aguarded)
            if called is None:
                return await aunguarded(declared.plan(), dispatch, request, args, kwargs)
            response = await dispatch(request, *args, **kwargs)
            if called:
                return response
            told = sync_to_async(_unguarded, thread_sensitive=True)
            return await told(declared, type(view), request, response)

        return adispatch

    @wraps(dispatch)
    def sync_dispatch(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if is_guarded_already(request):
            return dispatch(request, *args, **kwargs)
        called = _guard_handler(declared, view, request, guarded)
        if called is None:
            with AtomicRequests(without=exempt_of(request)):
                return dispatch(request, *args, **kwargs)
        response = dispatch(request, *args, **kwargs)
        return response if called else _unguarded(declared, type(view), request, response)

    return sync_dispatch


def guarded_as_view(declared: Declared, view: Callable[..., Any]) -> Callable[..., Any] | None:
    """
    Return what ``as_view()`` made, with or without decorators, with the guard in its `dispatch`.

    None for a view that is of no class, or of one whose `dispatch` calls no handler.
    """
    view_class = getattr(view, "view_class", None)
    if not (isinstance(view_class, type) and issubclass(view_class, View)):
        return None
    if not calls_handler(view_class):
        return None
    _look_for_guards(view_class)

    def wait(request: HttpRequest) -> None:
        if is_guarded_already(request):
            return
        request.idempotency = None  # type: ignore[attr-defined]
        waiting: tuple[type[View], Declared] | None = getattr(request, _WAITING, None)
        if waiting is None or waiting[0] is not view_class or waiting[1].yields:
            setattr(request, _WAITING, (view_class, declared))

    if iscoroutinefunction(view):

        @wraps(view)
        async def aview(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            wait(request)
            response = await view(request, *args, **kwargs)
            if vars(request).pop(_WAITING, None) is None:
                return response
            told = sync_to_async(_unguarded, thread_sensitive=True)
            return await told(declared, view_class, request, response)

        return markcoroutinefunction(aview)

    @wraps(view)
    def sync_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        wait(request)
        response = view(request, *args, **kwargs)
        if vars(request).pop(_WAITING, None) is None:
            return response
        return _unguarded(declared, view_class, request, response)

    return sync_view


def _guard_handler(
    declared: Declared, view: View, request: HttpRequest, run: Callable[..., Any]
) -> list[bool] | None:
    """
    Put the guard, `run`, around the handler that `View.dispatch` will look up.

    That of each unsafe method: `dispatch` of the project may change the request's method. Returns a
    list that is empty until a handler is called, or None if nothing is guarded. If the guard of a
    subclass, or of the URLconf, is already around the handler, only that one guards. The guard of
    the middleware gives way to this one (R17).
    """
    if is_guarded_already(request):
        return None
    request.idempotency = None  # type: ignore[attr-defined]
    handler = _handler(view, str(request.method))
    if handler is None:
        return None
    guards = declared.plan().guards(request)
    around: _Around | None = getattr(handler, _AROUND, None)
    if around is None and not guards:
        return None
    if around is not None and not (guards and around.declared.yields):
        return [True]
    called = [] if around is None else around.called
    for method in UNSAFE_METHODS:
        if (handler := _handler(view, method)) is not None:
            inner: _Around | None = getattr(handler, _AROUND, None)
            around = _Around(declared, handler if inner is None else inner.handler, called)
            setattr(view, method.lower(), _guarded_handler(around, run))
    return called


def _handler(view: View, method: str) -> Any:
    """Return what `View.dispatch` calls for a method; None if it is not allowed."""
    name = method.lower()
    return getattr(view, name, None) if name in view.http_method_names else None


def _guarded_handler(around: _Around, run: Callable[..., Any]) -> Callable[..., Any]:
    def guarded_handler(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        around.called.append(True)
        return run(around.declared, around.handler, request, args, kwargs)

    setattr(guarded_handler, _AROUND, around)
    return guarded_handler


def _look_for_guards(view_class: type[View]) -> None:
    """Let `dispatch` of a class take the guard that waits in its request, if there is one."""
    own: Any = vars(view_class).get("dispatch")
    if own is not None and getattr(own, _WAITING, None) is own:  # a decorator copies attributes
        return

    def dispatch(self: View, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        bound = own.__get__(self) if own else super(view_class, self).dispatch  # type: ignore[misc]
        waiting: tuple[type[View], Declared] | None = getattr(request, _WAITING, None)
        if waiting is not None and isinstance(self, waiting[0]):
            delattr(request, _WAITING)
            bound = guarded_dispatch(waiting[1], self, bound)
        return bound(request, *args, **kwargs)

    update_wrapper(dispatch, view_class.dispatch)
    setattr(dispatch, _WAITING, dispatch)
    if iscoroutinefunction(own):
        markcoroutinefunction(dispatch)
    view_class.dispatch = dispatch  # type: ignore[method-assign]


def calls_handler(view_class: type[View]) -> bool:
    """Return False for a class whose own `dispatch` is the work: it never names ``dispatch``."""
    for base in view_class.__mro__:
        dispatch: Any = vars(base).get("dispatch")
        while hasattr(dispatch, "__wrapped__"):
            dispatch = dispatch.__wrapped__
        code = getattr(dispatch, "__code__", None)
        if dispatch is View.dispatch:
            break
        if code is not None and not _says(code, "dispatch"):
            return False
    return True


def _says(code: CodeType, name: str) -> bool:
    """Whether a function, or one within it, has `name` as an attribute or as text."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    said = name in code.co_names or name in code.co_consts
    return said or any(_says(function, name) for function in inner)


def _unguarded(
    declared: Declared, view_class: type[View], request: HttpRequest, response: HttpResponseBase
) -> HttpResponseBase:
    """Return an answer that came without a call of the handler; warn if it may have been work."""
    done = 200 <= response.status_code < 300
    if done and declared.plan().carries_key(request):
        logger.error(
            "%s answered a request with an idempotency key without a call of its %s(): nothing was "
            "guarded.",
            view_class.__name__,
            str(request.method).lower(),
        )
        response["Idempotency-Stored"] = "false"
    return response
