"""System checks of guarded views of Django REST framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured

from django_idempotency.conf import http_policy_for, policy_for
from django_idempotency.contrib.rest_framework import IdempotencyMixin, is_drf_view
from django_idempotency.http.checks import policy_problems, url_callbacks
from django_idempotency.http.views import Declared
from django_idempotency.policy import UNSET, HTTPPolicy, Policy, merge

__all__ = ["check_dispatch", "check_policies", "check_scopes"]


@register(Tags.urls)
def check_scopes(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """A guarded view that authenticates nobody needs a scope of its own (R21)."""
    return [
        Error(
            f"{view.__module__}.{view.__qualname__} is guarded and has no authentication "
            f"classes, so it cannot be told whose idempotency key a request carries.",
            hint="Set authentication_classes, or define idempotency_scope(self, request).",
            obj=view,
            id="django_idempotency.E006",
        )
        for view in sorted(_without_scope(), key=lambda view: view.__qualname__)
    ]


@register(Tags.urls)
def check_dispatch(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The claim comes after permissions and throttles, so never around ``dispatch`` (R14)."""
    decorated = {
        callback.cls
        for callback in url_callbacks()
        if is_drf_view(callback) and _has_decorated_dispatch(callback.cls)
    }
    return [
        Error(
            f"@idempotent stands on dispatch of {view.__module__}.{view.__qualname__}: a replay "
            f"would pass by permissions and throttles, so each request is refused.",
            hint=f"Write class {view.__name__}(IdempotencyMixin, ...) instead.",
            obj=view,
            id="django_idempotency.E012",
        )
        for view in sorted(decorated, key=lambda view: view.__qualname__)
    ]


@register(Tags.urls)
def check_policies(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """What a view with the mixin, or an ``@action``, gives of its policy makes sense."""
    found: list[CheckMessage] = []
    for view, given in _guarded_views():
        name = f"{view.__module__}.{view.__qualname__}"
        alias = given.get("idempotency_store", view.idempotency_store)
        problems = policy_problems(name, alias, partial(_policies, view, given, alias), view)
        found.extend(problem for problem in problems if problem not in found)
    return found


def _guarded_views() -> Iterator[tuple[type[IdempotencyMixin], dict[str, Any]]]:
    """Yield each view with the mixin of the URLconf, and what as_view() was given."""
    for callback in url_callbacks():
        view = getattr(callback, "cls", None)
        if isinstance(view, type) and issubclass(view, IdempotencyMixin):
            yield view, getattr(callback, "initkwargs", {})


def _policies(
    view: type[IdempotencyMixin], given: dict[str, Any], alias: str
) -> tuple[Policy, HTTPPolicy]:
    http = merge(http_policy_for(alias), _given(view, given, HTTPPolicy))
    return merge(policy_for(alias), _given(view, given, Policy)), http


def _given(view: Any, given: dict[str, Any], of: type[Policy | HTTPPolicy]) -> dict[str, Any]:
    found = {}
    for field in fields(of):
        name = f"idempotency_{field.name}"
        value = given.get(name, getattr(view, name, UNSET))
        computed = hasattr(value, "__get__") and not callable(value)  # a property, per request
        found[field.name] = UNSET if computed else value
    return found


def _has_decorated_dispatch(view: Any) -> bool:
    own = [vars(base).get("dispatch") for base in view.__mro__]
    return any(isinstance(getattr(method, "idempotency", None), Declared) for method in own)


def _without_scope() -> set[type[IdempotencyMixin]]:
    found = set()
    for view, given in _guarded_views():
        if given.get("authentication_classes", view.authentication_classes):
            continue
        try:
            alias = given.get("idempotency_store", view.idempotency_store)
            scope = given.get("idempotency_scope", view.idempotency_scope)
            scope = scope or http_policy_for(alias).scope
        except ImproperlyConfigured:
            continue  # the check of the aliases tells
        if not scope:
            found.add(view)
    return found
