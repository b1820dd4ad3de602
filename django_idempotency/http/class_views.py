"""The guard of a class view: around the method's handler, inside the checks of `dispatch` (R34)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views import View

from django_idempotency.http.atomic_requests import atomic_of, blocks_on, mark
from django_idempotency.http.attributes import IdempotencyAttributes, plan_of
from django_idempotency.http.guard import is_guarded_already
from django_idempotency.http.handlers import ViewHandler
from django_idempotency.http.plans import Declared, ViewPlan, guards_itself
from django_idempotency.http.views import aguarded, aunguarded, guarded
from django_idempotency.observers import logger
from django_idempotency.options import conceal
from django_idempotency.policy import UNSAFE_METHODS

__all__ = [
    "IdempotencyViewMixin",
    "class_of",
    "guarded_as_view",
    "guarded_dispatch",
    "has_guard",
    "is_wrapped",
    "unguarded_as_view",
    "what_to_write",
]

#: The attribute of a view object whose handlers a guard stands around.
_GUARDED = "_idempotency_guarded"

#: Returns the plan of the method that has this name.
PlanFor = Callable[[str], ViewPlan]

if TYPE_CHECKING:
    _Base = View
else:
    _Base = object


class IdempotencyViewMixin(IdempotencyAttributes, _Base, before=View):
    """
    Guards the unsafe methods of a class view: each idempotency key runs once.

    It stands before the view's other bases. Every field of the policy is a class attribute
    ``idempotency_<field>``; callables are methods. Raises TypeError for a wrong order of the bases,
    an unknown name, a callable of another signature, and on a view of Django REST framework.
    """

    #: What the guard stands around: "handler", the method's, or "dispatch", where that is the work.
    #: Has no value here, where it would hide that of a base which stands behind.
    idempotency_guards: Literal["handler", "dispatch"]

    _form = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse what `IdempotencyAttributes` refuses, and views that have a mixin of their own."""
        super().__init_subclass__(**kwargs)
        drf = sys.modules.get("rest_framework.views")
        if drf is not None and issubclass(cls, drf.APIView):
            raise TypeError(
                f"{cls.__name__} is a view of Django REST framework. Write "
                f"class {cls.__name__}(IdempotencyMixin, ...), with IdempotencyMixin of "
                f"django_idempotency.contrib.rest_framework."
            )
        if (guards := getattr(cls, "idempotency_guards", "handler")) not in ("handler", "dispatch"):
            raise ValueError(
                f"{cls.__name__}: idempotency_guards must be 'handler' or 'dispatch', "
                f"not {guards!r}."
            )

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view function, with the transactions of ATOMIC_REQUESTS left to the guard."""
        conceal(initkwargs)  # Django's view function closes over them
        cls._check_keywords(initkwargs)
        return mark(super().as_view(**initkwargs))

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        """Set up as ever, and put the guard into `dispatch`."""
        super().setup(request, *args, **kwargs)
        guarded_here: Any = guarded_dispatch(partial(plan_of, self), self, self.dispatch)
        self.dispatch = guarded_here  # type: ignore[method-assign]


def guarded_dispatch(
    plan_for: PlanFor, view: View, dispatch: Callable[..., Any]
) -> Callable[..., Any]:
    """
    Return the bound `dispatch` of a class view with the guard around the handler that it calls.

    So the checks of LoginRequiredMixin and similar mixins run on each request, replays included. A
    method that the view lacks, or that is not guarded, has no claim. If another guard is around the
    handlers already, that of a subclass, only that one guards.
    """
    is_the_work = getattr(view, "idempotency_guards", "") == "dispatch"

    if view.view_is_async:

        @wraps(dispatch)
        async def adispatch(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if is_guarded_already(request) or hasattr(view, _GUARDED):
                return await dispatch(request, *args, **kwargs)
            plan = plan_for(str(request.method).lower())
            if is_the_work or not plan.guards(request):
                return await aguarded(plan, ViewHandler(dispatch, request, args, kwargs))
            called = _guard_handlers(plan_for, view, request, aguarded)
            response = await dispatch(request, *args, **kwargs)
            if called:
                return response
            told = sync_to_async(passed_by, thread_sensitive=True)
            return await told(plan, view, request, response)

        return adispatch

    @wraps(dispatch)
    def sync_dispatch(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if is_guarded_already(request) or hasattr(view, _GUARDED):
            return dispatch(request, *args, **kwargs)
        plan = plan_for(str(request.method).lower())
        if is_the_work or not plan.guards(request):
            return guarded(plan, ViewHandler(dispatch, request, args, kwargs))
        called = _guard_handlers(plan_for, view, request, guarded)
        response = dispatch(request, *args, **kwargs)
        return response if called else passed_by(plan, view, request, response)

    return sync_dispatch


def _guard_handlers(
    plan_for: PlanFor, view: View, request: HttpRequest, run: Callable[..., Any]
) -> list[str]:
    """
    Put the guard, `run`, around the handlers that `View.dispatch` may look up.

    That of each unsafe method: `dispatch` of the project may change the request's method. Returns
    a list of the handlers that have been called: empty, at first.
    """
    request.idempotency = None  # type: ignore[attr-defined]
    called: list[str] = []
    for name in map(str.lower, UNSAFE_METHODS):
        handler = getattr(view, name, None)
        if handler is not None and name in view.http_method_names:
            setattr(view, name, _guarded_handler(plan_for, name, handler, run, called))
    setattr(view, _GUARDED, True)
    return called


def _guarded_handler(
    plan_for: PlanFor, name: str, handler: Any, run: Callable[..., Any], called: list[str]
) -> Callable[..., Any]:
    def guarded_handler(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return run(plan_for(name), ViewHandler(handler, request, args, kwargs))

    return guarded_handler


def passed_by(
    plan: ViewPlan, view: View, request: HttpRequest, response: HttpResponseBase, call: str = ""
) -> HttpResponseBase:
    """
    Return an answer that came without the `call` that guards; warn if it may have been work.

    That is the call of the handler, if nothing else is named.
    """
    if 200 <= response.status_code < 300 and plan.carries_key(request):
        logger.error(
            "%s answered a request with an idempotency key without a call of %s: nothing was "
            "guarded.",
            type(view).__name__,
            call or f"its {str(request.method).lower()}()",
        )
        response["Idempotency-Stored"] = "false"
    return response


# What as_view() has made, as the middleware and the decorator find it.


def behind_partials(view: Any) -> Any:
    """Return the view that a `functools.partial` of the URLconf calls, as Django finds it, too."""
    while isinstance(view, partial):
        view = view.func
    return view


def class_of(view: Callable[..., Any]) -> type[View] | None:
    """Return the class of what ``as_view()`` has made, with or without decorators; else None."""
    view = behind_partials(view)
    view_class = getattr(view, "view_class", getattr(view, "cls", None))  # that of a ViewSet
    return view_class if isinstance(view_class, type) and issubclass(view_class, View) else None


def has_guard(view_class: type[View]) -> bool:
    """Whether a class guards itself: by a mixin, or by a decorator on a ``dispatch`` of it."""
    dispatches = (vars(it)["dispatch"] for it in view_class.__mro__ if "dispatch" in vars(it))
    return issubclass(view_class, IdempotencyAttributes) or any(map(guards_itself, dispatches))


def is_wrapped(view: Any) -> bool:
    """Whether a decorator, or a partial, stands around what ``as_view()`` has made."""
    if not hasattr(view, "view_initkwargs"):
        return True
    # `as_view` itself copies the attributes of a decorated `dispatch`, that one included.
    of_dispatch = getattr(view.view_class.dispatch, "__wrapped__", None)
    return getattr(view, "__wrapped__", None) is not of_dispatch


def guarded_as_view(declared: Declared, view: Any) -> Callable[..., Any]:
    """Return what serves requests in place of a class view that nothing has wrapped: guarded."""

    def serve(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        serving = view.view_class(**view.view_initkwargs)
        serving.setup(request, *args, **kwargs)
        dispatch = guarded_dispatch(lambda name: declared.plan(), serving, serving.dispatch)
        return dispatch(request, *args, **kwargs)

    return markcoroutinefunction(serve) if iscoroutinefunction(view) else serve


def unguarded_as_view(declared: Declared, view: Any) -> Callable[..., Any]:
    """
    Return a class view below other decorators, which no guard can be put into: it says so (R17).

    A guard around the decorators would answer replays without them (R34). Where a key is required
    each request raises ImproperlyConfigured.
    """
    name = _class_name(view)

    def refuse_if_required(plan: ViewPlan, request: HttpRequest) -> None:
        if plan.guards(request) and plan.http_policy.required:
            raise ImproperlyConfigured(f"{name} cannot be guarded here. {what_to_write(view)}")

    def told(plan: ViewPlan, request: HttpRequest, response: Any) -> Any:
        if plan.guards(request) and plan.carries_key(request):
            logger.error(
                "%s is not guarded, though a request has an idempotency key. %s",
                name,
                what_to_write(view),
            )
            response["Idempotency-Stored"] = "false"
        return response

    if iscoroutinefunction(view):

        @wraps(view)
        async def aview(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if is_guarded_already(request):
                return await view(request, *args, **kwargs)
            plan = declared.plan()
            refuse_if_required(plan, request)
            response = await aunguarded(plan, ViewHandler(view, request, args, kwargs))
            return await sync_to_async(told, thread_sensitive=True)(plan, request, response)

        return markcoroutinefunction(aview)

    @wraps(view)
    def sync_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if is_guarded_already(request):
            return view(request, *args, **kwargs)
        plan = declared.plan()
        refuse_if_required(plan, request)
        with blocks_on(atomic_of(request)):
            response = view(request, *args, **kwargs)
        return told(plan, request, response)

    return sync_view


def what_to_write(view: Any) -> str:
    """Return what guards a class view wherever decorators stand."""
    return (
        f"Write class {_class_name(view)}(IdempotencyViewMixin, ...), with IdempotencyViewMixin of "
        f"django_idempotency.http."
    )


def _class_name(view: Any) -> str:
    view_class: Any = class_of(view)
    return str(view_class.__name__)
