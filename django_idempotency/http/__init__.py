"""Requests and responses: the decorator, and what every kind of guarded view shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_idempotency.http.decorators import idempotent

__all__ = ["idempotent"]


def __getattr__(name: str) -> Any:
    """Import the decorator when it is first used: scopes may be named in settings."""
    if name != "idempotent":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from django_idempotency.http.decorators import idempotent

    return idempotent
