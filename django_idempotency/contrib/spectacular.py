"""
Guarded views of Django REST framework in OpenAPI documents that drf-spectacular makes.

Loaded automatically if ``drf_spectacular`` is in INSTALLED_APPS.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from django_idempotency.exceptions.base import missing

try:
    from drf_spectacular.drainage import isolate_view_method, warn
    from drf_spectacular.extensions import OpenApiViewExtension
    from drf_spectacular.openapi import AutoSchema
    from drf_spectacular.plumbing import ComponentRegistry, ResolvedComponent, get_class
except ModuleNotFoundError as error:
    raise missing("This adapter needs", "drf-spectacular", "openapi") from error

from django_idempotency.contrib.openapi import PROBLEM, describe
from django_idempotency.contrib.rest_framework.mixin import IdempotencyMixin
from django_idempotency.http.inventory import guards_of
from django_idempotency.http.plans import ViewPlan

if TYPE_CHECKING:
    _Schema = AutoSchema
else:
    _Schema = object


class GuardedViewExtension(OpenApiViewExtension):
    """Describes the key, the problems and the replays of each view with the mixin."""

    target_class = IdempotencyMixin
    match_subclasses = True
    priority = -1  # an extension of the project's own for its view comes first

    def view_replacement(self) -> type[Any]:
        """Return a view with schemas that describe the key; the original view does not change."""
        callback: Any = getattr(self, "target_callback", None)
        if callback is None:
            warn(
                "Guarded operations need drf-spectacular 0.29 or newer to be described: run "
                "pip install '.[openapi]' in a checkout of django-idempotency."
            )
            older: type[Any] = self.target
            return older
        members = {"__doc__": callback.cls.__doc__, "__module__": callback.cls.__module__}
        view: Any = type(callback.cls.__name__, (callback.cls,), members)
        for guarded in guards_of(callback):
            plan = guarded.plan()
            for name in guarded.guarded_methods(plan):
                method: Any = isolate_view_method(view, guarded.action or name.lower())
                keywords = getattr(method, "kwargs", {})
                schema = get_class(keywords.get("schema") or view.schema)
                described = type("GuardedSchema", (_Guarded, schema), {"guard": plan})
                method.kwargs = {**keywords, "schema": described}
        replacement: type[Any] = view
        return replacement


class _Guarded(_Schema):
    # The schema of an operation whose view has the mixin. Like the mixin, it has no docstring.

    guard: ViewPlan

    def get_operation(
        self, path: str, path_regex: str, path_prefix: str, method: str, registry: ComponentRegistry
    ) -> dict[str, Any] | None:
        operation: dict[str, Any] | None = super().get_operation(
            path, path_regex, path_prefix, method, registry
        )
        if operation is not None and method.upper() in self.guard.methods:
            policies = self.guard.policy, self.guard.http_policy
            describe(operation, *policies, partial(_problem, registry))
        return operation


def _problem(registry: ComponentRegistry) -> dict[str, Any]:
    """Return a reference to the schema of a problem (R78), which the document contains once."""
    component = ResolvedComponent(
        name="IdempotencyProblem",
        type=ResolvedComponent.SCHEMA,
        schema=deepcopy(PROBLEM),
        object="IdempotencyProblem",
    )
    registry.register_on_missing(component)
    reference: dict[str, Any] = component.ref
    return reference
