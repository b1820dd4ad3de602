"""
Idempotent views of Django REST framework.

`IdempotencyMixin` guards the unsafe methods of an APIView, generic view or ViewSet: each key runs
once. It stands before the view's other bases. Every field of the policy is a class attribute
``idempotency_<field>``, and a keyword of ``@action``; callables are methods. The claim comes after
authentication, permissions and throttles (R14), and the response is finalised and rendered inside
the transaction that does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.callables import signature_problem
from django_idempotency.conf import DEFAULT_ALIAS, HTTP_FIELDS, Plan, stores
from django_idempotency.contrib.rest_framework.browsable import give_keys
from django_idempotency.contrib.rest_framework.guard import RestGuard
from django_idempotency.contrib.rest_framework.objects import object_permissions
from django_idempotency.engine.transactions import OpenTransactions
from django_idempotency.http.atomic_requests import AtomicRequests, answering, exempt, mark
from django_idempotency.http.calls import is_guarded_already
from django_idempotency.http.plans import Declared, ViewPlan, declared_on
from django_idempotency.http.spool import tee
from django_idempotency.policy import (
    CALLED_WITH,
    UNSET,
    HTTPPolicy,
    Policy,
    suggestion,
)

__all__ = ["IdempotencyMixin", "object_permissions"]

_PREFIX = "idempotency_"
#: What a view gives: the alias of its store, and the fields of its policies.
_GIVEN = ("store", *(field.name for field in (*fields(Policy), *fields(HTTPPolicy))))
_NAMES = {_PREFIX + name: name for name in _GIVEN}
_get_given = attrgetter(*_NAMES)

if TYPE_CHECKING:
    _Base = APIView
else:
    _Base = object


# Has no docstring: tools that describe a view take that of its nearest base that has one, and would
# print ours into the project's own documents.
class IdempotencyMixin(_Base):
    #: The alias of IDEMPOTENCY whose store and policy count.
    idempotency_store: str = DEFAULT_ALIAS
    #: The actions of a ViewSet that are guarded; None for each with an unsafe method.
    idempotency_actions: Collection[str] | None = None

    idempotency_lease: Any = UNSET
    idempotency_retention: Any = UNSET
    idempotency_wait: Any = UNSET
    idempotency_renew: Any = UNSET
    idempotency_max_duration: Any = UNSET
    idempotency_transaction: Any = UNSET
    idempotency_on_stale: Any = UNSET
    idempotency_max_result_bytes: Any = UNSET
    idempotency_deadline: Any = UNSET
    idempotency_fingerprint_secrets: Any = UNSET

    idempotency_header: Any = UNSET
    idempotency_required: Any = UNSET
    idempotency_methods: Any = UNSET
    idempotency_scope: Any = UNSET
    idempotency_scope_endpoint: Any = UNSET
    idempotency_fingerprint: Any = UNSET
    idempotency_fingerprint_exclude: Any = UNSET
    idempotency_fingerprint_headers: Any = UNSET
    idempotency_key_validator: Any = UNSET
    idempotency_key_min_length: Any = UNSET
    idempotency_key_max_length: Any = UNSET
    idempotency_strict_header: Any = UNSET
    idempotency_keep: Any = UNSET
    idempotency_replay_header: Any = UNSET
    idempotency_replay_headers: Any = UNSET
    idempotency_echo_key: Any = UNSET
    idempotency_in_progress_status: Any = UNSET
    idempotency_mismatch_status: Any = UNSET
    idempotency_documentation_url: Any = UNSET
    idempotency_error_renderer: Any = UNSET
    idempotency_fail_open: Any = UNSET
    idempotency_form_field: Any = UNSET
    idempotency_replay_check: Any = UNSET

    # By the name of a handler.
    _plans: ClassVar[dict[str, _MadePlan]] = {}
    _decorated: ClassVar[dict[str | None, tuple[dict[str, Any], dict[str, Any]]]] = {}

    # Of the one request that this instance of the view serves.
    _guarded: bool = False
    _keyed: bool = False
    _plan: ViewPlan
    # The aliases that the project itself exempts, on `dispatch` or in the URLconf.
    _exempt: Collection[str] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """
        Refuse a base order in which the guard would not be reached, unknown names and signatures.

        A function of a module, ``idempotency_scope = scopes.session``, is taken as it is; what is
        defined in a class is a method.
        """
        super().__init_subclass__(**kwargs)
        cls._plans, cls._decorated = {}, {}
        bases = cls.__mro__
        if APIView in bases and bases.index(APIView) < bases.index(IdempotencyMixin):
            raise TypeError(
                f"{cls.__name__} must name IdempotencyMixin before its other bases: "
                f"class {cls.__name__}(IdempotencyMixin, ...)."
            )
        known = [name for name in vars(IdempotencyMixin) if name.startswith(_PREFIX)]
        for name, value in list(vars(cls).items()):
            if not name.startswith(_PREFIX):
                continue
            if name not in known:
                raise TypeError(f"{cls.__name__} has {name!r}.{suggestion(name, known)}")
            owner = getattr(value, "__qualname__", "").rpartition(".")[0]
            if isinstance(value, FunctionType) and (not owner or owner.endswith("<locals>")):
                setattr(cls, name, staticmethod(value))
            cls._check_signature(name)

    @classmethod
    def _check_signature(cls, name: str) -> None:
        """Raise TypeError for a callable of the policy that cannot be called as it will be."""
        field, value = name.removeprefix(_PREFIX), getattr(cls, name)
        if field not in CALLED_WITH or not callable(value):
            return
        itself = ("self",) if isinstance(vars(cls)[name], FunctionType) else ()
        if problem := signature_problem(name, value, *itself, *CALLED_WITH[field]):
            raise TypeError(f"{cls.__name__}.{problem}")

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        """Return the view function, with the transactions of ATOMIC_REQUESTS left to the guard."""
        return mark(super().as_view(*args, **initkwargs))

    def perform_content_negotiation(
        self, request: Request, force: bool = False
    ) -> tuple[BaseRenderer, str]:
        """Return the renderer and its media type; the browsable API's forms get keys (R35)."""
        renderer, media_type = super().perform_content_negotiation(request, force)
        if isinstance(renderer, BrowsableAPIRenderer):
            give_keys(renderer, partial(guarding_policy, self))
        return renderer, media_type

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """
        Dispatch as ever; a request that is not guarded gets its ATOMIC_REQUESTS around all.

        One that a guard around this view has is not guarded by it a second time (R17).
        """
        match = request.resolver_match
        self._exempt = exempt(type(self).dispatch) | exempt(match.func if match else None)
        if not is_guarded_already(request):
            request.idempotency = None  # type: ignore[attr-defined]
            method, actions = str(request.method).lower(), self.idempotency_actions
            action = (getattr(self, "action_map", None) or {}).get(method)
            self._plan = plan = plan_of(self, action or method)
            self._guarded = request.method in plan.methods and (
                actions is None or action in actions
            )
        if self._guarded:
            return super().dispatch(request, *args, **kwargs)
        with AtomicRequests(without=self._exempt):
            return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, authorise and throttle; then put the guard before the method's handler."""
        if not self._guarded:
            super().initial(request, *args, **kwargs)
            return
        self._keyed = self._plan.carries_key(request._request)
        if self._keyed:
            tee(request._request)  # who authenticates may read the body, too
        with AtomicRequests(without=self._exempt):
            super().initial(request, *args, **kwargs)
        method = str(request.method).lower()
        if method in self.http_method_names and hasattr(self, method):
            setattr(self, method, partial(self._idempotent, getattr(self, method)))

    def handle_exception(self, exc: Exception) -> Response:
        """Answer an exception; what that marks for rollback is a block of ours (R84)."""
        if not self._guarded:
            return super().handle_exception(exc)
        with answering(without=self._exempt):
            return super().handle_exception(exc)

    def _idempotent(
        self,
        method: Callable[..., HttpResponseBase],
        request: Request,
        *args: Any,
        **kwargs: Any,
    ) -> HttpResponseBase:
        """Stand in for the method's handler."""
        return RestGuard(
            self._plan,
            self,
            method,
            request,
            args,
            kwargs,
            exempt=self._exempt,
            keyed=self._keyed,
        ).respond()


class _MadePlan(NamedTuple):
    """The plan of a view's method, and what it was made of."""

    alias: Plan
    of_class: dict[str, Any]
    nearer: dict[str, Any]
    plan: ViewPlan
    #: The fields that are methods of the view, and so are bound for each request.
    methods: list[str]


def plan_of(view: IdempotencyMixin, handler: str) -> ViewPlan:
    """
    Return the plan of a view's method: made once for each that a class and its keywords give.

    What is a property of the class is computed for each request, so that its plan is made anew.
    """
    view_class = type(view)
    of_class, nearer = _of_class(view_class), _nearer(view_class, vars(view), handler)
    made = view_class._plans.get(handler)
    if (
        made is None
        or made.of_class != of_class
        or made.nearer != nearer
        or made.alias is not stores.configured(made.alias.alias)
    ):
        given = of_class | nearer
        computed = [
            name
            for name, value in given.items()
            if hasattr(value, "__get__") and not callable(value)  # a property
        ]
        given |= {name: getattr(view, _PREFIX + name) for name in computed}
        alias = stores.configured(given.pop("store"))
        plan = ViewPlan.of(alias.with_fields(given), form=False)
        methods = [name for name in CALLED_WITH if name not in nearer and callable(of_class[name])]
        made = _MadePlan(alias, of_class, nearer, plan, methods)
        if not computed:
            view_class._plans[handler] = made
    return _bound(view, made.methods, made.plan) if made.methods else made.plan


def _bound(view: IdempotencyMixin, names: list[str], plan: ViewPlan) -> ViewPlan:
    """Return the plan for one request: callables of the class are methods of its view."""
    policy, http = copy(plan.policy), copy(plan.http_policy)  # they are validated already
    for name in names:
        policy_of_name = http if name in HTTP_FIELDS else policy
        object.__setattr__(policy_of_name, name, getattr(view, _PREFIX + name))
    return replace(plan, policy=policy, http_policy=http)


def given_policy(
    view_class: type[IdempotencyMixin], keywords: Mapping[str, Any], handler: str | None
) -> dict[str, Any]:
    """
    Return the store that a view with the mixin gives, and the fields of its policy, or UNSET.

    What stands nearest to the work counts: ``@idempotent`` on the method `handler`, the `keywords`
    of ``as_view()`` and ``@action``, ``@idempotent`` on ``dispatch``, and then the class.
    """
    return _of_class(view_class) | _nearer(view_class, keywords, handler)


def _of_class(view_class: type[IdempotencyMixin]) -> dict[str, Any]:
    return dict(zip(_GIVEN, _get_given(view_class), strict=True))


def _nearer(
    view_class: type[IdempotencyMixin], keywords: Mapping[str, Any], handler: str | None
) -> dict[str, Any]:
    """Return what is given nearer to the work than on the class."""
    decorated = view_class._decorated.get(handler)
    if decorated is None:
        on_dispatch: dict[str, Any] = {}
        for base in reversed(view_class.__mro__):
            if "dispatch" in vars(base):
                on_dispatch |= _declared(vars(base)["dispatch"])
        on_handler = _declared(getattr(view_class, handler or "", None))
        decorated = view_class._decorated[handler] = (on_dispatch, on_handler)
    on_dispatch, on_handler = decorated
    given = {_NAMES[name]: keywords[name] for name in keywords if name in _NAMES}
    return on_dispatch | given | on_handler


def guarding_policy(view: APIView, method: str) -> HTTPPolicy | None:
    """Return the policy under which a view with the mixin guards `method`; None if it does not."""
    if not isinstance(view, IdempotencyMixin):
        return None
    handler = (getattr(view, "action_map", None) or {}).get(method.lower())
    actions = view.idempotency_actions
    if actions is not None and handler not in actions:
        return None
    plan = plan_of(view, handler or method.lower())
    return plan.http_policy if method in plan.methods else None


def _declared(method: Any) -> dict[str, Any]:
    """Return what ``@idempotent`` on a method gives, and nothing where it does not stand."""
    given: dict[str, Any] = {}
    for declared in declared_on(method):
        given |= declared.given()
    return given


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
        _PREFIX + name: staticmethod(value) if callable(value) else value
        for name, value in declared.given().items()
    }
    keywords = {name: value for name, value in view.initkwargs.items() if name not in members}
    members |= {"__module__": view.cls.__module__, "__doc__": view.cls.__doc__}
    bases = (view.cls,) if has_mixin else (IdempotencyMixin, view.cls)
    view_class: Any = type(view.cls.__name__, bases, members)
    view_function: Callable[..., HttpResponseBase] = view_class.as_view(*actions, **keywords)
    return view_function


def guarded_function(
    declared: Declared, function: Callable[..., Any], request: Request, *args: Any, **kwargs: Any
) -> HttpResponseBase:
    """
    Answer for a function below ``@api_view``.

    With ATOMIC_REQUESTS Django's own transaction is open around it: claim, work and completion are
    part of it then, and an answer that was raised is not kept.
    """
    request._request.idempotency = None  # type: ignore[attr-defined]
    view: Any = (request.parser_context or {})["view"]
    plan = replace(declared.plan(), form=False)
    if not plan.guards(request._request):
        return cast("HttpResponseBase", function(request, *args, **kwargs))
    match = request._request.resolver_match
    exempted = exempt(match.func if match else None)
    within = not OpenTransactions(plan.store).may_wait
    kind = _RestGuardWithin if within else RestGuard
    keyed = plan.carries_key(request._request)
    guard = kind(plan, view, function, request, args, kwargs, exempt=exempted, keyed=keyed)
    return guard.respond()


class _RestGuardWithin(RestGuard):
    """The guard within Django's own transaction, which DRF marks for rollback when it answers."""

    def on_exception(self, error: Exception) -> HttpResponseBase:
        """Let the error leave the transaction."""
        raise error


def _depth(view: Any) -> int:
    depth = 0
    while hasattr(view, "__wrapped__"):
        view, depth = view.__wrapped__, depth + 1
    return depth
