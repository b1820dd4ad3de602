"""The policy of a view class as its attributes: what the mixins of both kinds of views share."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from asgiref.sync import iscoroutinefunction

from django_idempotency.callables import signature_problem
from django_idempotency.conf import DEFAULT_ALIAS, HTTP_FIELDS, Plan, stores
from django_idempotency.http.plans import ViewPlan, declared_on
from django_idempotency.options import SECRETS, Secret, conceal, secrets_in
from django_idempotency.policy import (
    CALLED_WITH,
    UNSET,
    HTTPPolicy,
    Policy,
    check_signatures,
    empty_methods,
    suggestion,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_idempotency.options import Duration, Names, OnStale, Secrets, Transaction

_PREFIX = "idempotency_"
#: What a view gives: the alias of its store, its operation, and the fields of its policies.
_GIVEN = ("store", "operation", *(field.name for field in (*fields(Policy), *fields(HTTPPolicy))))
_NAMES = {_PREFIX + name: name for name in _GIVEN}
_get_given = attrgetter(*_NAMES)

Frozen = TypeVar("Frozen")
_Decorated = tuple[dict[str, Any], dict[str, Any]]


# Has no docstring: tools that describe a view take that of its nearest base that has one, and would
# print ours into the project's own documents.
class IdempotencyAttributes:
    #: The alias of IDEMPOTENCY whose store and policy count.
    idempotency_store: str = DEFAULT_ALIAS
    #: What the view does, for one that is not to be known by its URL: see `http.idempotent`.
    idempotency_operation: str = ""

    idempotency_lease: Duration = UNSET
    idempotency_retention: Duration = UNSET
    idempotency_wait: Duration = UNSET
    idempotency_renew: bool = UNSET
    idempotency_max_duration: Duration = UNSET
    idempotency_transaction: Transaction | None = UNSET
    idempotency_on_stale: OnStale = UNSET
    idempotency_max_result_bytes: int = UNSET
    idempotency_max_steps_bytes: int = UNSET
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

    #: The mixin of ours that a view has, and the class that it must stand before.
    _mixin: ClassVar[type[IdempotencyAttributes]]
    _before: ClassVar[type]
    #: Whether the key may come in a form's hidden field.
    _form: ClassVar[bool] = False
    # By the name of a handler.
    _plans: ClassVar[dict[str, _MadePlan]] = {}
    _decorated: ClassVar[dict[str, _Decorated]] = {}

    def __init_subclass__(cls, *, before: type | None = None, **kwargs: Any) -> None:
        """
        Refuse bases before the mixin, unknown names, wrong signatures, and an empty set of methods.

        A function of a module, ``idempotency_scope = scopes.session``, is taken as it is; what is
        defined in a class is a method. A mixin of ours names the class `before` which it stands.
        """
        super().__init_subclass__(**kwargs)
        cls._plans, cls._decorated = {}, {}
        if before is not None:
            cls._mixin, cls._before = cls, before
            return
        bases, mixin = cls.__mro__, cls._mixin
        if cls._before in bases and bases.index(cls._before) < bases.index(mixin):
            raise TypeError(
                f"{cls.__name__} must name {mixin.__name__} before its other bases: "
                f"class {cls.__name__}({mixin.__name__}, ...)."
            )
        cls._refuse_unknown(vars(cls))
        for name, value in list(vars(cls).items()):
            if not name.startswith(_PREFIX):
                continue
            owner = getattr(value, "__qualname__", "").rpartition(".")[0]
            if isinstance(value, FunctionType) and (not owner or owner.endswith("<locals>")):
                setattr(cls, name, staticmethod(value))
            cls._check_signature(name)
        if problems := empty_methods(vars(cls).get("idempotency_methods")):
            raise ValueError(f"{cls.__name__}: idempotency_{problems[0]}")

    @classmethod
    def _refuse_unknown(cls, names: Iterable[str]) -> None:
        """Raise TypeError for a name with our prefix that is not ours, with the nearest one."""
        mixin = cls._mixin
        known = [it for it in (*dir(mixin), *mixin.__annotations__) if it.startswith(_PREFIX)]
        for name in names:
            if name.startswith(_PREFIX) and name not in known:
                raise TypeError(f"{cls.__name__} has {name!r}.{suggestion(name, known)}")

    @classmethod
    def _check_keywords(cls, initkwargs: Mapping[str, Any]) -> None:
        """Raise TypeError for a keyword of ``as_view()``, or ``@action``, that the view lacks."""
        cls._refuse_unknown(name for name in initkwargs if not hasattr(cls, name))

    @classmethod
    def _check_signature(cls, name: str) -> None:
        """Raise TypeError for a callable of the policy that cannot be called as it will be."""
        field, value = name.removeprefix(_PREFIX), getattr(cls, name)
        if field not in CALLED_WITH or not callable(value):
            return
        itself = ("self",) if isinstance(vars(cls)[name], FunctionType) else ()
        if problem := signature_problem(name, value, *itself, *CALLED_WITH[field]):
            raise TypeError(f"{cls.__name__}.{problem}")


class _MadePlan(NamedTuple):
    """The plan of a view's method, and what it was made of."""

    alias: Plan
    #: The attributes of the class, secrets among them.
    attributes: Secret
    of_class: dict[str, Any]
    nearer: dict[str, Any]
    plan: ViewPlan
    #: The fields that are methods of the view, and so are bound for each request.
    methods: list[str]


def plan_of(view: IdempotencyAttributes, handler: str) -> ViewPlan:
    """
    Return the plan of a view's method: made once for each that a class and its keywords give.

    What is a property of the class is computed for each request, so that its plan is made anew.
    """
    made = _made(type(view), vars(view), handler)
    plan = made.plan
    if plan.computed:
        given = {name: getattr(view, _PREFIX + name) for name in plan.computed}
        plan = _plan(type(view), handler, made.of_class | made.nearer | given)
    return _bound(view, made.methods, plan) if made.methods else plan


def plan_of_class(
    view_class: type[IdempotencyAttributes], keywords: Mapping[str, Any], handler: str
) -> ViewPlan:
    """Return the plan of a class's method with these keywords of ``as_view()``."""
    return _made(view_class, keywords, handler).plan


def _made(
    view_class: type[IdempotencyAttributes], keywords: Mapping[str, Any], handler: str
) -> _MadePlan:
    """
    Return what is made of that which a view gives for a method: the store, the operation, fields.

    What stands nearest to the work counts: ``@idempotent`` on the method `handler`, the `keywords`
    of ``as_view()`` and ``@action``, ``@idempotent`` on ``dispatch``, and then the class.
    """
    if not hasattr(view_class, handler):  # clients may send any method
        handler = ""
    decorated = view_class._decorated.get(handler)
    if decorated is None:
        decorated = view_class._decorated[handler] = _decorated(view_class, handler)
    on_dispatch, on_handler = decorated
    given = {_NAMES[name]: keywords[name] for name in keywords if name in _NAMES}
    nearer = on_dispatch | given | on_handler
    made = view_class._plans.get(handler)
    if (
        made is None
        or made.attributes.value != _get_given(view_class)
        or made.nearer != nearer
        or made.alias is not stores.plans.get(made.alias.alias)
    ):
        attributes, of_class = Secret(_get_given(view_class)), _of_class(view_class)
        check_signatures(nearer)
        plan = _plan(view_class, handler, of_class | nearer)
        methods = [
            name
            for name in CALLED_WITH
            if name not in nearer and callable(of_class[name]) and _is_method(view_class, name)
        ]
        alias = stores.configured(plan.alias)
        made = _MadePlan(alias, attributes, of_class, nearer, plan, methods)
        view_class._plans[handler] = made
    return made


def _plan(view_class: type[IdempotencyAttributes], handler: str, given: dict[str, Any]) -> ViewPlan:
    conceal(given)
    computed = [name for name, value in given.items() if is_property(value)]
    given |= {name: _DEFAULTS[name] for name in computed}
    alias, operation_name = stores.configured(given.pop("store")), given.pop("operation")
    return ViewPlan.of(
        alias.with_fields(given),
        form=view_class._form,
        coroutine=iscoroutinefunction(getattr(view_class, handler, None)),
        operation_name=operation_name,
        computed=computed,
    )


def is_property(value: Any) -> bool:
    """Whether an attribute of a class is computed for each object."""
    return hasattr(value, "__get__") and not callable(value)


def _is_method(view_class: type[IdempotencyAttributes], name: str) -> bool:
    value = inspect.getattr_static(view_class, _PREFIX + name)
    return hasattr(value, "__get__") and not isinstance(value, (classmethod, staticmethod))


def _bound(view: IdempotencyAttributes, names: list[str], plan: ViewPlan) -> ViewPlan:
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


def _of_class(view_class: type[IdempotencyAttributes]) -> dict[str, Any]:
    given = dict(zip(_GIVEN, _get_given(view_class), strict=True))
    for name in SECRETS:
        if given[name] is not UNSET:
            given[name] = secrets_in(given[name])
    return given


#: What counts in the place of a property, where there is no request.
_DEFAULTS = _of_class(IdempotencyAttributes)


def _decorated(view_class: type[IdempotencyAttributes], handler: str) -> _Decorated:
    """Return what ``@idempotent`` on ``dispatch`` gives, and on the method `handler`."""
    on_dispatch: dict[str, Any] = {}
    for base in reversed(view_class.__mro__):
        if "dispatch" in vars(base):
            on_dispatch |= _declared(vars(base)["dispatch"])
    return on_dispatch, _declared(getattr(view_class, handler, None))


def _declared(method: Any) -> dict[str, Any]:
    """Return what ``@idempotent`` on a method gives, and nothing where it does not stand."""
    given: dict[str, Any] = {}
    for declared in declared_on(method):
        given |= declared.given()
    return given
