"""Requests and responses: the decorator, the mixin, and what every kind of guarded view shares."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_idempotency.http.annotations import IdempotentRequest
    from django_idempotency.http.class_views import IdempotencyViewMixin
    from django_idempotency.http.decorators import idempotent

__all__ = ["IdempotencyViewMixin", "IdempotentRequest", "idempotent"]

_HOMES = {
    "IdempotencyViewMixin": "class_views",
    "IdempotentRequest": "annotations",
    "idempotent": "decorators",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: scopes may be named in settings."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
