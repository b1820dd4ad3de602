"""The declaration of a view's guard, and the plan that is made of it once."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from django.http import HttpRequest

from django_idempotency.conf import (
    DEFAULT_ALIAS,
    HTTP_FIELDS,
    POLICY_FIELDS,
    Declaration,
    Plan,
)
from django_idempotency.http.content import form_key, header_field
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.policy import (
    UNSAFE_METHODS,
    UnknownField,
    empty_methods,
    signature_problems,
    suggestion,
)

__all__ = ["Declared", "ViewPlan", "check_operation", "declared_on", "ninja_operations"]


@dataclass(frozen=True)
class ViewPlan(Plan):
    """How the requests to a view are guarded: all that is fixed before the first request."""

    #: The methods that are guarded.
    methods: Collection[str]
    #: Whether the work commits in the store's transaction unless the policy says otherwise.
    joins: bool
    #: Whether the key may come in a form's hidden field.
    form: bool
    #: Whether the handler is a coroutine function, for an adapter that asks.
    coroutine: bool
    codec: SnapshotCodec
    #: What the view says that it does; empty for a view that is known by its URL.
    operation_name: str

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
    ) -> ViewPlan:
        """Return a view's plan; `methods` are guarded if the policy names none."""
        policy, http = plan.policy, plan.http_policy
        check_operation(operation_name)
        return cls(
            **{item.name: getattr(plan, item.name) for item in fields(Plan)},
            methods=methods if http.methods is None else http.methods,
            joins=joins,
            form=form,
            coroutine=coroutine,
            codec=SnapshotCodec(http.replay_headers, policy.max_result_bytes),
            operation_name=operation_name,
        )

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
        if http.required or header_field(request, http.header) is not None:
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
    #: Whether this guard gives way to a guard within the view: the middleware's does.
    yields: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        known = POLICY_FIELDS | HTTP_FIELDS
        for name in self.overrides:
            if name not in known:
                nearest = suggestion(name, known | {"operation", "store"})
                raise UnknownField(f"idempotent() has no {name!r}.{nearest}")
        check_operation(self.operation)
        if problems := signature_problems(self.overrides):
            raise TypeError(" ".join(problems))
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


def declared_on(method: Any) -> list[Declared]:
    """
    Return what ``@idempotent`` left on a view or on a method of a class, the outermost last.

    method_decorator gives its function the attributes of what it decorates, so a second guard is
    found among its decorators only.
    """
    found: list[Declared] = []
    while method is not None:
        for declared in (*_decorating(method), getattr(method, "idempotency", None)):
            if isinstance(declared, Declared) and not any(declared is it for it in found):
                found.append(declared)
        method = getattr(method, "__wrapped__", None)
    return found[::-1]


def ninja_operations(view: Any) -> Iterator[Any]:
    """
    Yield the guarded operations of django-ninja behind a view of the URLconf.

    Ninja's view closes over them; `contrib.ninja` has left each its declaration, ``idempotency``.
    """
    if getattr(view, "__module__", "") != "ninja.operation":
        return
    for cell in getattr(inspect.unwrap(view), "__closure__", None) or ():
        operations = getattr(cell.cell_contents, "operations", ())
        yield from (it for it in operations if hasattr(it, "idempotency"))


def is_operation(guarded: Any) -> bool:
    """Whether this is an operation of django-ninja, and not a view: `contrib.ninja` marks it."""
    return hasattr(guarded, "idempotency_nearer")


def _decorating(method: Any) -> Iterator[Any]:
    """Yield what the decorators that method_decorator has given a method say, outermost first."""
    code = getattr(method, "__code__", None)
    for name, cell in zip(
        getattr(code, "co_freevars", ()), getattr(method, "__closure__", None) or (), strict=False
    ):
        if name == "decorators" and isinstance(cell.cell_contents, (list, tuple)):
            for decorator in reversed(cell.cell_contents):
                if isinstance(decorator, partial):
                    yield from decorator.args
