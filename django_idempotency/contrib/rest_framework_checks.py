"""System checks of guarded views of Django REST framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured

from django_idempotency.conf import http_policy_for
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http.checks import url_callbacks

__all__ = ["check_scopes"]


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


def _without_scope() -> set[type[IdempotencyMixin]]:
    found = set()
    for callback in url_callbacks():
        view = getattr(callback, "cls", None)
        if not isinstance(view, type) or not issubclass(view, IdempotencyMixin):
            continue
        given = getattr(callback, "initkwargs", {})
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
