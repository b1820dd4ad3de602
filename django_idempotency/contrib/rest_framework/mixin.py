"""
Idempotent views of Django REST framework.

`IdempotencyMixin` guards the unsafe methods of an APIView, generic view or ViewSet: each key runs
once. It stands before the view's other bases. Every field of the policy is a class attribute
``idempotency_<field>``, and a keyword of ``@action``; callables are methods. The claim comes after
authentication, permissions and throttles (R14), and the response is finalised and rendered inside
the transaction that does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views import View
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework.browsable import give_keys
from django_idempotency.contrib.rest_framework.handler import RestHandler
from django_idempotency.contrib.rest_framework.objects import object_permissions
from django_idempotency.http.atomic_requests import answering, atomic_of, blocks_on, exempt, mark
from django_idempotency.http.attributes import IdempotencyAttributes, plan_of
from django_idempotency.http.class_views import passed_by
from django_idempotency.http.guard import Guard, is_guarded_already
from django_idempotency.http.handlers import ViewHandler
from django_idempotency.http.plans import Declared, ViewPlan
from django_idempotency.http.spool import tee
from django_idempotency.http.views import aunguarded
from django_idempotency.options import conceal
from django_idempotency.policy import UNSAFE_METHODS

__all__ = ["IdempotencyMixin", "object_permissions"]

if TYPE_CHECKING:
    from django_idempotency.options import Names

    _Base = APIView
else:
    _Base = object


# Has no docstring: tools that describe a view take that of its nearest base that has one, and would
# print ours into the project's own documents.
class IdempotencyMixin(IdempotencyAttributes, _Base, before=APIView):
    #: The actions of a ViewSet that are guarded; None for each with an unsafe method.
    idempotency_actions: Names | None = None

    # Of the one request that this instance of the view serves: whether it has come as far as
    # `dispatch` and `initial` of this class, and whether it is guarded.
    _dispatched: bool = False
    _initialised: bool = False
    _guarded: bool = False
    _keyed: bool = False
    _plan: ViewPlan
    # The aliases on which ATOMIC_REQUESTS gives it a transaction.
    _atomic: Sequence[str] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse what `IdempotencyAttributes` refuses, and views that this mixin cannot guard."""
        super().__init_subclass__(**kwargs)
        if issubclass(cls, View) and not issubclass(cls, APIView):
            raise TypeError(
                f"{cls.__name__} is no view of Django REST framework. Write "
                f"class {cls.__name__}(IdempotencyViewMixin, ...), with IdempotencyViewMixin of "
                f"django_idempotency.http."
            )

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        """Return the view function, with the transactions of ATOMIC_REQUESTS left to the guard."""
        conceal(initkwargs)  # Django's view function closes over them
        cls._check_keywords(initkwargs)
        return mark(super().as_view(*args, **initkwargs))

    def perform_content_negotiation(
        self, request: Request, force: bool = False
    ) -> tuple[BaseRenderer, str]:
        """Return the renderer and its media type; the browsable API's forms get keys (R35)."""
        renderer, media_type = super().perform_content_negotiation(request, force)
        if isinstance(renderer, BrowsableAPIRenderer):
            give_keys(renderer, partial(_plan_for, self))
        return renderer, media_type

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """
        Dispatch as ever; a request that is not guarded gets its ATOMIC_REQUESTS around all.

        One that a guard around this view has is not guarded by it a second time (R17).
        """
        self._dispatched = True
        self._atomic = atomic_of(request, type(self).dispatch)
        if not is_guarded_already(request):
            request.idempotency = None  # type: ignore[attr-defined]
            self._plan, self._guarded = _plan_for(self, str(request.method))
        if self._guarded:
            self._atomic = self._plan.atomic(self._atomic)
            answer: HttpResponseBase = super().dispatch(request, *args, **kwargs)
            if self._initialised or _is_coroutine(self):
                return answer
            return passed_by(self._plan, self, request, answer, "IdempotencyMixin.initial()")
        if _is_coroutine(self):
            view: Any = super().dispatch
            if hasattr(self, "_plan"):
                response: Any = aunguarded(self._plan, ViewHandler(view, request, args, kwargs))
                return cast("HttpResponseBase", response)
            return cast("HttpResponseBase", view(request, *args, **kwargs))
        with blocks_on(self._atomic):
            return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, authorise and throttle; then put the guard before the method's handler."""
        self._initialised = True
        if not (self._dispatched or is_guarded_already(request._request)):
            self._refuse_undispatched(request)
        if not self._guarded:
            super().initial(request, *args, **kwargs)
            return
        self._keyed = self._plan.carries_key(request._request)
        if self._keyed:
            tee(request._request)  # who authenticates may read the body, too
        with blocks_on(self._atomic):
            super().initial(request, *args, **kwargs)
        for method in map(str.lower, UNSAFE_METHODS):  # `initial` of the view may change it
            handler = getattr(self, method, None)
            if method in self.http_method_names and handler is not None:
                if self._plan.coroutine:
                    guarded: Any = _awaiting(self._idempotent, handler)
                else:
                    guarded = partial(self._idempotent, handler, Guard.respond)
                setattr(self, method, guarded)

    def handle_exception(self, exc: Exception) -> Response:
        """Answer an exception; what that marks for rollback is a block of ours (R84)."""
        if not self._guarded or _is_coroutine(self):  # on a loop there is no transaction to mark
            return super().handle_exception(exc)
        with answering(self._atomic):
            return super().handle_exception(exc)

    def _refuse_undispatched(self, request: Request) -> None:
        """Raise for a request that is to be guarded, and came past our `dispatch`."""
        if _plan_for(self, str(request.method))[1]:
            raise ImproperlyConfigured(
                f"{type(self).__name__}.dispatch() must call super().dispatch(): without it "
                f"IdempotencyMixin guards nothing."
            )

    def _idempotent(
        self,
        method: Callable[..., Any],
        respond: Callable[[Guard], Any],
        request: Request,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Stand in for the method's handler; another handler of the view may call it, too."""
        if is_guarded_already(request):
            return method(request, *args, **kwargs)
        handler = RestHandler(method, request, args, kwargs, self)
        atomic, keyed = self._atomic, self._keyed
        return respond(Guard(self._plan, request._request, handler, atomic=atomic, keyed=keyed))


def _awaiting(idempotent: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a coroutine; were it the mixin's method, adrf would await all."""

    async def aidempotent(request: Request, /, *args: Any, **kwargs: Any) -> Any:
        return await idempotent(method, Guard.arespond, request, *args, **kwargs)

    return aidempotent


def _is_coroutine(view: APIView) -> bool:
    """Whether the view's ``dispatch`` returns a coroutine, as those of adrf may."""
    return hasattr(view, "async_dispatch") and bool(view.view_is_async)


def _plan_for(view: IdempotencyMixin, method: str) -> tuple[ViewPlan, bool]:
    """Return the plan of a method of the view, and whether the view guards it."""
    action = (getattr(view, "action_map", None) or {}).get(method.lower())
    actions, plan = view.idempotency_actions, plan_of(view, action or method.lower())
    return plan, method in plan.methods and (actions is None or action in actions)


def is_drf_view(view: Any) -> bool:
    """Return whether a view function was made of an APIView."""
    view_class = getattr(view, "cls", None)
    return isinstance(view_class, type) and issubclass(view_class, APIView)


def guarded_view(view: Any, declared: Declared) -> Callable[..., HttpResponseBase]:
    """
    Return a view of the same class with the mixin: what ``@idempotent`` above ``@api_view`` makes.

    Of a class that has the mixin it changes the policy. Raises TypeError where that would lose
    other decorators.
    """
    actions = (view.actions,) if hasattr(view, "actions") else ()
    has_mixin = issubclass(view.cls, IdempotencyMixin)
    made = "as_view()" if has_mixin else "@api_view"
    if _depth(view) > _depth(view.cls.as_view(*actions, **view.initkwargs)):
        raise TypeError(
            f"Put @idempotent directly above {made} of {view.cls.__name__}, and other decorators "
            f"above it."
        )
    members: dict[str, Any] = {
        f"idempotency_{name}": staticmethod(value) if callable(value) else value
        for name, value in declared.given().items()
    }
    keywords = {name: value for name, value in view.initkwargs.items() if name not in members}
    members |= {"__module__": view.cls.__module__, "__doc__": view.cls.__doc__}
    bases = (view.cls,) if has_mixin else (IdempotencyMixin, view.cls)
    view_class: Any = type(view.cls.__name__, bases, members)
    view_function: Callable[..., HttpResponseBase] = view_class.as_view(*actions, **keywords)
    # What decorators without a wrapper have left, such as `non_atomic_requests` of the project.
    vars(view_function).update({**vars(view), **vars(view_function)})
    view_function._non_atomic_requests.update(exempt(view))  # type: ignore[attr-defined]
    return view_function


def _depth(view: Any) -> int:
    depth = 0
    while hasattr(view, "__wrapped__"):
        view, depth = view.__wrapped__, depth + 1
    return depth
