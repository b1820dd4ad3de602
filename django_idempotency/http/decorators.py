"""The decorator for function views, and by method_decorator for class views."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.views import View

from django_idempotency.conf import DEFAULT_ALIAS
from django_idempotency.http.atomic_requests import mark
from django_idempotency.http.attributes import IdempotencyAttributes
from django_idempotency.http.class_views import (
    class_of,
    guarded_dispatch,
    has_guard,
    unguarded_as_view,
)
from django_idempotency.http.guard import is_guarded_already
from django_idempotency.http.handlers import ViewHandler
from django_idempotency.http.inventory import register
from django_idempotency.http.plans import Declared, leave_mark
from django_idempotency.http.views import aguarded, guarded
from django_idempotency.policy import HTTPPolicy, Policy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_idempotency.options import HTTPPolicyOptions

__all__ = ["guarding", "idempotent"]

V = TypeVar("V", bound=Callable[..., Any])


@overload
def idempotent(view: V, /) -> V: ...
@overload
def idempotent(
    *, store: str = DEFAULT_ALIAS, operation: str = "", **policy: Unpack[HTTPPolicyOptions]
) -> Callable[[V], V]: ...
def idempotent(
    view: Callable[..., Any] | None = None,
    /,
    *,
    store: str = DEFAULT_ALIAS,
    operation: str = "",
    **policy: Unpack[HTTPPolicyOptions],
) -> Any:
    """
    Guard a function view, sync or async: each idempotency key runs once.

    The keywords are fields of the policy and of the HTTP policy. `operation` names what the view
    does: give it before you change its URL's name or route. Put it above ``@api_view``. For a class
    view use the mixin of its kind, or ``@method_decorator(idempotent(required=True),
    name="dispatch")``. On a class with a mixin, the decorator changes the mixin's policy. Raises
    TypeError for a class or a method, and UnknownField (a TypeError) for an unknown field. On
    ``dispatch`` of a view of Django REST framework without the mixin, each request raises
    TypeError. Around ``as_view()`` it cannot guard, as a system check says: where a key is
    required, each request raises ImproperlyConfigured.
    """
    if view is not None and not callable(view):
        raise TypeError(_how_to_write(view))
    declared = Declared(store, policy, operation=operation)
    if view is None:
        return partial(_decorate, declared)
    return _decorate(declared, view)


def _decorate(declared: Declared, view: Callable[..., Any]) -> Callable[..., Any]:
    _refuse_what_is_no_view(view)
    if _is_left_to_a_mixin(view):
        return view
    if hasattr(view, "cls"):
        from django_idempotency.contrib.rest_framework import mixin as rest_framework

        if rest_framework.is_drf_view(view):
            guarded_class: Callable[..., Any] = rest_framework.guarded_view(view, declared)
            return guarded_class
    if (view_class := class_of(view)) is None:
        wrapper = guarding(declared, view)
    elif has_guard(view_class):
        raise TypeError(
            f"@idempotent cannot stand around as_view() of {view_class.__name__}, which is "
            f"guarded already. Give the policy on the class, or with the mixin as keywords of "
            f"as_view(), such as idempotency_required=True."
        )
    else:
        wrapper = unguarded_as_view(declared, view)
        wrapper.view_class = view_class  # type: ignore[attr-defined]  # a partial has none to copy
    leave_mark(wrapper, declared)
    if _bound(view) is None:
        register(view, declared)
    # What django-ninja calls with the operation that it makes of a function.
    wrapper._ninja_contribute_to_operation = [_refuse_operation]  # type: ignore[attr-defined]
    return mark(wrapper)


def guarding(declared: Declared, view: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function view with the guard around it, or a bound method of a class view."""
    bound = _instance(view)
    if isinstance(bound, View) and _is_dispatch(view):
        return guarded_dispatch(lambda name: declared.plan(), bound, view)
    if iscoroutinefunction(view) or getattr(bound, "view_is_async", False):

        @wraps(view)
        async def aguarded_view(request: Any, *args: Any, **kwargs: Any) -> Any:
            if hasattr(request, "_request"):  # below @api_view of adrf
                if is_guarded_already(request):
                    return await view(request, *args, **kwargs)
                from django_idempotency.contrib.rest_framework import functions

                return await functions.aguarded_function(declared, view, request, *args, **kwargs)
            return await aguarded(declared.plan(), ViewHandler(view, request, args, kwargs))

        return markcoroutinefunction(aguarded_view) if iscoroutinefunction(view) else aguarded_view

    @wraps(view)
    def guarded_view(request: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(request, "_request"):  # below @api_view, or on a method of an APIView
            if is_guarded_already(request):  # the mixin, say (R17)
                return view(request, *args, **kwargs)
            from django_idempotency.contrib.rest_framework import functions

            return functions.guarded_function(declared, view, request, *args, **kwargs)
        return guarded(declared.plan(), ViewHandler(view, request, args, kwargs))

    return guarded_view


def _how_to_write(given: object) -> str:
    """Return what is wrong with an argument that is not a view, and what to write."""
    known = {item.name: item.type for policy in (Policy, HTTPPolicy) for item in fields(policy)}
    meant = given if isinstance(given, str) and given in known else "required"
    value = "True" if known[meant] == "bool" else "..."
    return (
        f"idempotent({given!r}) takes no positional argument but a view. "
        f"Write @idempotent({meant}={value})."
    )


def _refuse_what_is_no_view(view: Callable[..., Any]) -> None:
    run = getattr(inspect.unwrap(view), "__self__", None)
    operation = getattr(view, "_ninja_operation", run)
    if any(base.__module__ == "ninja.operation" for base in type(operation).__mro__):
        _refuse_operation(operation)
    if inspect.isclass(view):
        raise TypeError(
            f"@idempotent cannot stand on the class {view.__name__}. Write "
            f'@method_decorator(idempotent(...), name="dispatch").'
        )
    if isinstance(view, FunctionType) and _bound(view) is None:
        owner = view.__qualname__.rpartition(".")[0]
        if owner and not owner.endswith("<locals>"):
            raise TypeError(
                f"@idempotent cannot stand on the method {view.__qualname__}. Write "
                f'@method_decorator(idempotent(...), name="{view.__name__}") on the class.'
            )


def _refuse_operation(operation: Any) -> None:
    raise TypeError(
        f"@idempotent cannot guard {operation.view_func.__name__}, an operation of django-ninja: "
        f"it does not know whom the operation's authentication has found, and around that a replay "
        f"would bypass it. Use idempotent of django_idempotency.contrib.ninja."
    )


def _is_dispatch(view: Callable[..., Any]) -> bool:
    return getattr(view, "__name__", "") == "dispatch"


def _is_left_to_a_mixin(view: Callable[..., Any]) -> bool:
    """
    Whether a mixin guards, which reads the policy of the decorator on ``dispatch``.

    Raises TypeError for a view of Django REST framework without the mixin: a replay would bypass
    permissions and throttles (R14).
    """
    if not _is_dispatch(view):
        return False
    bound = _instance(view)
    if isinstance(bound, IdempotencyAttributes):
        return True
    drf = sys.modules.get("rest_framework.views")
    if drf is not None and isinstance(bound, drf.APIView):
        name = type(bound).__name__
        raise TypeError(
            f"@idempotent cannot stand on dispatch of {name}, a view of Django REST framework. "
            f"Write class {name}(IdempotencyMixin, ...), with IdempotencyMixin of "
            f"django_idempotency.contrib.rest_framework."
        )
    return False


def _instance(view: Any) -> object:
    """Return the view whose method `method_decorator` has bound; None for a function."""
    bound = _bound(view)
    return getattr(bound.func, "__self__", None) if bound is not None else None


def _bound(view: Any) -> partial[Any] | None:
    """Return the partial that `method_decorator` made of a method, also below other decorators."""
    while view is not None and not isinstance(view, partial):
        view = getattr(view, "__wrapped__", None)
    return view
