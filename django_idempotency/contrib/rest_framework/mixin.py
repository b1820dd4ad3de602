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
from dataclasses import fields
from functools import partial
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from asgiref.sync import iscoroutinefunction
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
from django_idempotency.http.atomic_requests import AtomicRequests, answering, exempt, mark
from django_idempotency.http.calls import is_guarded_already
from django_idempotency.http.plans import Declared, ViewPlan, declared_on
from django_idempotency.http.spool import tee
from django_idempotency.http.views import aunguarded
from django_idempotency.options import SECRETS, conceal, secrets_in
from django_idempotency.policy import (
    CALLED_WITH,
    UNSAFE_METHODS,
    UNSET,
    HTTPPolicy,
    Policy,
    empty_methods,
    suggestion,
)

__all__ = ["IdempotencyMixin", "object_permissions"]

_PREFIX = "idempotency_"
#: The attribute of what stands in for a handler that is the handler.
_GUARDED = "_idempotency_guarded"
#: What a view gives: the alias of its store, its operation, and the fields of its policies.
_GIVEN = ("store", "operation", *(field.name for field in (*fields(Policy), *fields(HTTPPolicy))))
_NAMES = {_PREFIX + name: name for name in _GIVEN}
_get_given = attrgetter(*_NAMES)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_idempotency.options import Duration, Names, OnStale, Secrets, Transaction

    _Base = APIView
else:
    _Base = object


# Has no docstring: tools that describe a view take that of its nearest base that has one, and would
# print ours into the project's own documents.
class IdempotencyMixin(_Base):
    #: The alias of IDEMPOTENCY whose store and policy count.
    idempotency_store: str = DEFAULT_ALIAS
    #: What the view does, for one that is not to be known by its URL: see `http.idempotent`.
    idempotency_operation: str = ""
    #: The actions of a ViewSet that are guarded; None for each with an unsafe method.
    idempotency_actions: Names | None = None

    idempotency_lease: Duration = UNSET
    idempotency_retention: Duration = UNSET
    idempotency_wait: Duration = UNSET
    idempotency_renew: bool = UNSET
    idempotency_max_duration: Duration = UNSET
    idempotency_transaction: Transaction | None = UNSET
    idempotency_on_stale: OnStale = UNSET
    idempotency_max_result_bytes: int = UNSET
    idempotency_deadline: Any = UNSET
    idempotency_fingerprint_secrets: Secrets = UNSET
    idempotency_encryption_keys: Secrets = UNSET

    idempotency_header: str = UNSET
    idempotency_required: bool = UNSET
    idempotency_methods: Names | None = UNSET
    idempotency_scope: Any = UNSET
    idempotency_scope_endpoint: bool = UNSET
    idempotency_fingerprint: Any = UNSET
    idempotency_fingerprint_exclude: str | Sequence[str] = UNSET
    idempotency_fingerprint_headers: str | Sequence[str] = UNSET
    idempotency_key_validator: Any = UNSET
    idempotency_key_min_length: int = UNSET
    idempotency_key_max_length: int = UNSET
    idempotency_strict_header: bool = UNSET
    idempotency_keep: Any = UNSET
    idempotency_replay_header: str | None = UNSET
    idempotency_replay_headers: str | Sequence[str] = UNSET
    idempotency_echo_key: bool = UNSET
    idempotency_in_progress_status: int = UNSET
    idempotency_mismatch_status: int = UNSET
    idempotency_documentation_url: str = UNSET
    idempotency_error_renderer: Any = UNSET
    idempotency_fail_open: bool = UNSET
    idempotency_form_field: str = UNSET
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
        Refuse bases before the mixin, unknown names, wrong signatures, and an empty set of methods.

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
        if problems := empty_methods(vars(cls).get("idempotency_methods")):
            raise ValueError(f"{cls.__name__}: idempotency_{problems[0]}")

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
        conceal(initkwargs)  # Django's view function closes over them
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
        if _is_coroutine(self):
            view: Any = super().dispatch
            if hasattr(self, "_plan"):
                view = partial(aunguarded, self._plan, view)
                return cast("HttpResponseBase", view(request, args, kwargs))
            return cast("HttpResponseBase", view(request, *args, **kwargs))
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
        for method in map(str.lower, UNSAFE_METHODS):  # `initial` of the view may change it
            handler = getattr(self, method, None)
            if method in self.http_method_names and handler is not None:
                handler = getattr(handler, _GUARDED, handler)  # of an earlier dispatch
                if self._plan.coroutine:
                    guarded: Any = _awaiting(self._idempotent, handler)
                else:
                    guarded = partial(self._idempotent, handler, RestGuard.respond)
                setattr(guarded, _GUARDED, handler)
                setattr(self, method, guarded)

    def handle_exception(self, exc: Exception) -> Response:
        """Answer an exception; what that marks for rollback is a block of ours (R84)."""
        if not self._guarded or _is_coroutine(self):  # on a loop there is no transaction to mark
            return super().handle_exception(exc)
        with answering(without=self._exempt):
            return super().handle_exception(exc)

    def _idempotent(
        self,
        method: Callable[..., Any],
        respond: Callable[[RestGuard], Any],
        request: Request,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Stand in for the method's handler."""
        given: Any = {"exempt": self._exempt, "keyed": self._keyed}
        return respond(RestGuard(self._plan, self, method, request, args, kwargs, **given))


def _awaiting(idempotent: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a coroutine; were it the mixin's method, adrf would await all."""

    async def aidempotent(request: Request, /, *args: Any, **kwargs: Any) -> Any:
        return await idempotent(method, RestGuard.arespond, request, *args, **kwargs)

    return aidempotent


def _is_coroutine(view: APIView) -> bool:
    """Whether the view's ``dispatch`` returns a coroutine, as those of adrf may."""
    return hasattr(view, "async_dispatch") and bool(view.view_is_async)


Frozen = TypeVar("Frozen")


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
    of_class, nearer = _of_class(view_class), _nearer(view_class, view.__dict__, handler)
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
        conceal(given)
        alias = stores.configured(given.pop("store"))
        coroutine = iscoroutinefunction(getattr(view, handler, None))
        name = given.pop("operation")
        plan = ViewPlan.of(
            alias.with_fields(given), form=False, coroutine=coroutine, operation_name=name
        )
        methods = [
            name
            for name in CALLED_WITH
            if name not in nearer
            and callable(of_class[name])
            and getattr(view, _PREFIX + name) is not of_class[name]
        ]
        made = _MadePlan(alias, of_class, nearer, plan, methods)
        if not computed:
            view_class._plans[handler] = made
    return _bound(view, made.methods, made.plan) if made.methods else made.plan


def _bound(view: IdempotencyMixin, names: list[str], plan: ViewPlan) -> ViewPlan:
    """Return the plan for one request: callables of the class are methods of its view."""
    policy, http = _copied(plan.policy), _copied(plan.http_policy)  # they are validated already
    for name in names:
        vars(http if name in HTTP_FIELDS else policy)[name] = getattr(view, _PREFIX + name)
    return _copied(plan, policy=policy, http_policy=http)


def _copied(frozen: Frozen, **changes: Any) -> Frozen:
    """Return a copy of a frozen dataclass; `replace` would make and check each field anew."""
    copied = object.__new__(type(frozen))
    vars(copied).update(vars(frozen), **changes)
    return copied


def given_policy(
    view_class: type[IdempotencyMixin], keywords: Mapping[str, Any], handler: str | None
) -> dict[str, Any]:
    """
    Return the store and operation that a view with the mixin gives, and its fields, or UNSET.

    What stands nearest to the work counts: ``@idempotent`` on the method `handler`, the `keywords`
    of ``as_view()`` and ``@action``, ``@idempotent`` on ``dispatch``, and then the class.
    """
    return _of_class(view_class) | _nearer(view_class, keywords, handler)


def _of_class(view_class: type[IdempotencyMixin]) -> dict[str, Any]:
    given = dict(zip(_GIVEN, _get_given(view_class), strict=True))
    for name in SECRETS:
        if given[name] is not UNSET:
            given[name] = secrets_in(given[name])
    return given


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
    """See `guarding_plan`."""
    plan = guarding_plan(view, method)
    return None if plan is None else plan.http_policy


def guarding_plan(view: APIView, method: str) -> ViewPlan | None:
    """Return the plan by which a view with the mixin guards `method`; None if it does not."""
    if not isinstance(view, IdempotencyMixin):
        return None
    handler = (getattr(view, "action_map", None) or {}).get(method.lower())
    actions = view.idempotency_actions
    if actions is not None and handler not in actions:
        return None
    plan = plan_of(view, handler or method.lower())
    return plan if method in plan.methods else None


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


def _depth(view: Any) -> int:
    depth = 0
    while hasattr(view, "__wrapped__"):
        view, depth = view.__wrapped__, depth + 1
    return depth
