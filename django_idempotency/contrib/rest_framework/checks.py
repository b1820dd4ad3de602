"""System checks of guarded views of Django REST framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from django_idempotency.conf import http_policy_for, policy_for
from django_idempotency.contrib.rest_framework.mixin import (
    IdempotencyMixin,
    given_policy,
    is_drf_view,
)
from django_idempotency.http.checks import declarations, policy_problems, url_callbacks
from django_idempotency.http.plans import Declared, check_operation
from django_idempotency.policy import (
    UNSAFE_METHODS,
    UNSET,
    HTTPPolicy,
    Policy,
    merge,
    signature_problems,
    suggestion,
)

__all__ = ["check_actions", "check_dispatch", "check_policies", "check_scopes"]

_USUAL_ACTIONS = ("list", "create", "retrieve", "update", "partial_update", "destroy")


def check_scopes(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """A guarded view without authentication needs a scope of its own (R21)."""
    return [
        Error(
            f"{_name(view)} is guarded and has no authentication classes, so the guard does not "
            f"know whose idempotency key a request carries.",
            hint="Set authentication_classes, or a scope: idempotency_scope(self, request) with "
            "the mixin, idempotent(scope=...) without.",
            obj=view,
            id="django_idempotency.E006",
        )
        for view in sorted(_without_scope(), key=_name)
    ]


def check_dispatch(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The claim comes after permissions and throttles, so never around ``dispatch`` (R14)."""
    decorated = {
        callback.cls
        for callback in _callbacks()
        if not issubclass(callback.cls, IdempotencyMixin) and _has_decorated_dispatch(callback.cls)
    }
    return [
        Error(
            f"@idempotent stands on dispatch of {_name(view)}: a replay would bypass permissions "
            f"and throttles, so each request is refused.",
            hint=f"Write class {view.__name__}(IdempotencyMixin, ...) instead.",
            obj=view,
            id="django_idempotency.E012",
        )
        for view in sorted(decorated, key=_name)
    ]


def check_policies(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The policy of a view with the mixin, an ``@action`` or a decorator is valid."""
    found: list[CheckMessage] = []
    for callback in _callbacks():
        keywords = {
            name.removeprefix("idempotency_"): value
            for name, value in getattr(callback, "initkwargs", {}).items()
        }
        for _, given in _guarded_methods(callback):
            policies = partial(_policies, given, keywords)
            problems = policy_problems(_name(callback.cls), given["store"], policies, callback.cls)
            found.extend(problem for problem in problems if problem not in found)
    return found


def check_actions(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The names in ``idempotency_actions`` are actions: a typo would leave one unguarded."""
    found: list[CheckMessage] = []
    views: dict[type[IdempotencyMixin], list[Any]] = {}
    for callback in _callbacks():
        if not _said(getattr(callback.cls, "idempotency_actions", None)):
            continue
        if hasattr(callback, "actions"):
            views.setdefault(_giver(callback.cls), []).append(callback)
        else:
            found.append(
                _wrong_actions(
                    callback.cls,
                    "has idempotency_actions and is not a ViewSet: none of it is guarded.",
                    "Only a ViewSet has actions; use idempotency_methods.",
                )
            )
    for giver, callbacks in views.items():
        found.extend(_unknown_actions(giver, callbacks))
    return found


def _giver(view: type[IdempotencyMixin]) -> type[IdempotencyMixin]:
    """Return the class that sets ``idempotency_actions``: a view, or a base of several."""
    return next(base for base in view.__mro__ if "idempotency_actions" in vars(base))


def _unknown_actions(giver: type[IdempotencyMixin], callbacks: list[Any]) -> Iterator[Error]:
    actions = giver.idempotency_actions or ()
    if isinstance(actions, str):
        yield _wrong_actions(
            giver,
            f"has {actions!r}, one string, for idempotency_actions.",
            f"Write a set of names: {{{actions!r}}}.",
        )
        return
    known = {action for callback in callbacks for action in _actions(callback)}
    for name in sorted(set(actions) - known):
        yield _wrong_actions(
            giver,
            f"has no action {name!r}, which idempotency_actions names.{suggestion(name, known)}",
            "Name the methods that are actions, such as 'create': any other is not guarded.",
        )


def _wrong_actions(view: type[IdempotencyMixin], problem: str, hint: str) -> Error:
    return Error(f"{_name(view)} {problem}", hint=hint, obj=view, id="django_idempotency.E014")


def _actions(callback: Any) -> set[str]:
    """Return the actions that a ViewSet has, whether the URLconf leads there or not."""
    extra = {
        name for action in callback.cls.get_extra_actions() for name in action.mapping.values()
    }
    usual = {name for name in _USUAL_ACTIONS if hasattr(callback.cls, name)}
    return extra | usual | set(callback.actions.values())


def _callbacks() -> Iterator[Any]:
    """Yield each view function of the URLconf that comes from an APIView."""
    return (callback for callback in url_callbacks() if is_drf_view(callback))


def _guarded_methods(callback: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each method of a view with the mixin, and the fields of the policy that it sets."""
    if not issubclass(callback.cls, IdempotencyMixin):
        return
    handlers: dict[str, str] = getattr(callback, "actions", None) or {
        name: name for name in callback.cls.http_method_names if hasattr(callback.cls, name)
    }
    for method, handler in handlers.items():
        given = given_policy(callback.cls, getattr(callback, "initkwargs", {}), handler)
        if _said(given["store"]) is not UNSET:
            yield method.upper(), {name: _said(value) for name, value in given.items()}


def _said(value: Any) -> Any:
    """Return a value of a class, or UNSET for a property, which is computed per request."""
    return UNSET if hasattr(value, "__get__") and not callable(value) else value


def _policies(given: dict[str, Any], keywords: Mapping[str, Any]) -> tuple[Policy, HTTPPolicy]:
    """Return the policies of a method; the keywords of ``as_view()`` are no methods of its view."""
    if problems := signature_problems(keywords):
        raise TypeError(" ".join(problems))
    if given["operation"] is not UNSET:
        check_operation(given["operation"])
    policy, http = policy_for(given["store"]), http_policy_for(given["store"])
    return (
        merge(policy, {field.name: given[field.name] for field in fields(policy)}),
        merge(http, {field.name: given[field.name] for field in fields(http)}),
    )


def _has_decorated_dispatch(view: Any) -> bool:
    own = [vars(base).get("dispatch") for base in view.__mro__]
    return any(isinstance(getattr(method, "idempotency", None), Declared) for method in own)


def _without_scope() -> set[Any]:
    found = set()
    for callback in _callbacks():
        given = getattr(callback, "initkwargs", {})
        if given.get("authentication_classes", callback.cls.authentication_classes):
            continue
        try:
            if not all(_scopes(callback)):
                found.add(callback.cls)
        except (ImproperlyConfigured, TypeError, ValueError):
            continue  # the checks of the aliases and of the policies tell
    return found


def _scopes(callback: Any) -> Iterator[Any]:
    """Yield the scope of each guard of a view, or None."""
    for declared, _ in declarations(callback):
        yield declared.plan().http_policy.scope
    if issubclass(callback.cls, IdempotencyMixin):
        every = dict(_guarded_methods(callback))
        unsafe = [given for method, given in every.items() if method in UNSAFE_METHODS]
        for given in unsafe or every.values():
            yield given["scope"] or http_policy_for(given["store"]).scope


def _name(view: Any) -> str:
    return f"{view.__module__}.{view.__qualname__}"
