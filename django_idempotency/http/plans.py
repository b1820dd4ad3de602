"""The declaration of a view's guard, and the plan that is made of it once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from uuid import UUID

from django.http import HttpRequest

from django_idempotency.conf import (
    DEFAULT_ALIAS,
    HTTP_FIELDS,
    POLICY_FIELDS,
    Declaration,
    Plan,
)
from django_idempotency.engine.operation import Operation
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.http.atomic_requests import is_marked
from django_idempotency.http.content import form_key
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.policy import (
    UNSAFE_METHODS,
    UnknownField,
    check_signatures,
    empty_methods,
    suggestion,
)

_NO_RECORD = UUID(int=0)
_NO_FINGERPRINT = Fingerprint(b"", ())


@dataclass(frozen=True)
class ViewPlan(Plan):
    """How the requests to a view are guarded: all that is fixed before the first request."""

    #: The methods that are guarded.
    methods: Collection[str]
    #: The header field of the key, by its name in ``request.META``.
    key_field: str
    #: Whether the work commits in the store's transaction unless the policy says otherwise.
    joins: bool
    #: Whether the key may come in a form's hidden field.
    form: bool
    #: Whether the handler is a coroutine function, for an adapter that asks.
    coroutine: bool
    codec: SnapshotCodec
    #: What the view says that it does; empty for a view that is known by its URL.
    operation_name: str
    #: What each request may change, since it is a property of the view's class.
    computed: Collection[str]

    @classmethod
    def of(
        cls,
        plan: Plan,
        *,
        methods: Collection[str] = UNSAFE_METHODS,
        joins: bool = True,
        form: bool = True,
        coroutine: bool = False,
        operation_name: str = "",
        computed: Collection[str] = (),
    ) -> ViewPlan:
        """Return a view's plan; `methods` are guarded if the policy names none."""
        policy, http = plan.policy, plan.http_policy
        check_operation(operation_name)
        if policy.transaction == "steps":  # who has no key or no record cannot go on
            http = replace(http, required=True, fail_open=False)
            plan = replace(plan, http_policy=http)
        return cls(
            **{item.name: getattr(plan, item.name) for item in fields(Plan)},
            methods=methods if http.methods is None else http.methods,
            key_field="HTTP_" + http.header.upper().replace("-", "_"),
            joins=joins,
            form=form,
            coroutine=coroutine,
            codec=SnapshotCodec(http.replay_headers, policy.max_result_bytes),
            operation_name=operation_name,
            computed=computed,
        )

    def unrecorded(self, name: str, *, transaction: str, aliases: Sequence[str] = ()) -> Operation:
        """Return the operation of work that has its transactions, and no record (R90)."""
        return Operation(
            record_id=_NO_RECORD,
            scope="",
            key="",
            name=name,
            fingerprint=_NO_FINGERPRINT,
            policy=self.policy,
            codec=self.codec,
            transaction=transaction,
            aliases=aliases,
            recorded=False,
            closes_connections=True,
        )

    def atomic(self, aliases: Sequence[str]) -> Sequence[str]:
        """Return those on which a guarded request has ATOMIC_REQUESTS: none with steps (T17)."""
        return () if self.policy.transaction == "steps" else aliases

    def guards(self, request: HttpRequest) -> bool:
        """Whether the request's method is guarded."""
        return request.method in self.methods

    def carries_key(self, request: HttpRequest) -> bool:
        """
        Whether a request carries a key, or must carry one.

        With `form` the hidden field of a form counts, so Django parses the body of each form that
        comes without the header field.
        """
        http = self.http_policy
        if http.required or request.META.get(self.key_field) is not None:
            return True
        return self.form and form_key(request, http) is not None


@dataclass
class Declared(Declaration[ViewPlan]):
    """The declaration of a plain view's guard."""

    #: What the view says that it does; empty for a view that is known by its URL.
    operation: str = ""
    #: The methods that are guarded if the policy names none.
    methods: Collection[str] = UNSAFE_METHODS
    #: Whether the work commits in the store's transaction unless the policy says otherwise.
    joins: bool = True
    #: Whether the key may come in a form's hidden field.
    form: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        known = POLICY_FIELDS | HTTP_FIELDS
        for name in self.overrides:
            if name not in known:
                nearest = suggestion(name, known | {"operation", "store"})
                raise UnknownField(f"idempotent() has no {name!r}.{nearest}")
        check_operation(self.operation)
        check_signatures(self.overrides)
        if problems := empty_methods(self.overrides.get("methods")):
            raise ValueError(problems[0])

    def given(self) -> dict[str, Any]:
        """Return the fields that this view gives, and its store and operation if it names them."""
        given = dict(self.overrides)
        if self.store != DEFAULT_ALIAS:
            given["store"] = self.store
        if self.operation:
            given["operation"] = self.operation
        return given

    def _plan(self, alias: Plan) -> ViewPlan:
        plan = alias.with_fields(self.overrides)
        return ViewPlan.of(
            plan,
            methods=self.methods,
            joins=self.joins,
            form=self.form,
            operation_name=self.operation,
        )


def check_operation(name: Any) -> None:
    """Raise TypeError for what cannot name a view's operation."""
    if not isinstance(name, str):
        raise TypeError(f"operation must be a string that says what the view does, not {name!r}.")


def leave_mark(wrapper: Any, declared: Declared) -> None:
    """Leave on a view what it declares: decorators that stand above copy its attributes."""
    # By a name of its own: method_decorator copies those of the method over those of its decorator.
    setattr(wrapper, f"_idempotency_{id(declared):x}", declared)


def declared_on(method: Any) -> list[Declared]:
    """Return what ``@idempotent`` left on a view or on a method of a class, the outermost last."""
    marks: list[dict[str, Any]] = []
    while method is not None:
        marks.append(getattr(method, "__dict__", {}))
        method = getattr(method, "__wrapped__", None)
    left: dict[str, Any] = {}
    for attributes in reversed(marks):
        left |= attributes
    return [mark for mark in left.values() if isinstance(mark, Declared)]


def guards_itself(view: Any) -> bool:
    """
    Return whether a view, or a method of one, guards itself.

    ``method_decorator`` may hide the mark for ATOMIC_REQUESTS behind a `non_atomic_requests` of the
    project's.
    """
    return is_marked(view) or bool(declared_on(view))
