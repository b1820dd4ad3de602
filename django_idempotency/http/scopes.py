"""Whose key it is: ready callables for the HTTP policy's ``scope``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from django_idempotency.exceptions import ScopeMissing

__all__ = ["anyone", "session", "tenant_and_user", "user", "user_or_session"]


def user(request: Any) -> str:
    """Return the authenticated user, model and primary key (R19, R20); raise ScopeMissing."""
    principal = getattr(request, "user", None)
    pk = getattr(principal, "pk", None)
    if principal is None or not principal.is_authenticated or pk is None:
        raise ScopeMissing
    meta = getattr(principal, "_meta", None)
    label = meta.concrete_model._meta.label_lower if meta else type(principal).__qualname__
    return f"user:{label}:{pk}"


def session(request: Any) -> str:
    """
    Return the visitor's session, which is begun if there is none yet; raise ScopeMissing.

    As a hash: a scope is stored and shown, and a session's key is a secret.
    """
    visitor = getattr(request, "session", None)
    if visitor is None:
        raise ScopeMissing("There is no session: add SessionMiddleware, or choose another scope.")
    if not visitor.session_key:
        visitor.create()
    return f"session:{hashlib.sha256(visitor.session_key.encode()).hexdigest()}"


def user_or_session(request: Any) -> str:
    """Return the user, or the session of a visitor: the scope of keys that come in forms (R89)."""
    try:
        return user(request)
    except ScopeMissing:
        return session(request)


def anyone(request: Any) -> str:
    """Return one scope for everybody: whoever knows a key gets its answer."""
    return "anyone"


def tenant_and_user(tenant: Callable[[Any], Any]) -> Callable[[Any], str]:
    """Return a scope made of the tenant that ``tenant(request)`` names and the user (R19)."""

    def scope(request: Any) -> str:
        name = tenant(request)
        if name is None:
            raise ScopeMissing("The request has no tenant.")
        return f"tenant:{len(str(name))}:{name}:{user(request)}"

    return scope
