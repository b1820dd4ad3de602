"""Ready callables for the HTTP policy's ``scope``: whose key it is."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from django_idempotency.exceptions import ScopeMissing

__all__ = ["anyone", "session", "tenant_and_user", "user", "user_or_session"]

#: The name in the session's data of the scope of a visitor's keys.
_NAME = "_idempotency_scope"
#: What the parts before a scope begin with: a tenant, or an endpoint. Their length follows.
_BEFORE = re.compile(r"(?:tenant:)?([0-9]{1,3}):")


def user(request: Any) -> str:
    """Return the authenticated user, model and primary key (R19, R20); raise ScopeMissing."""
    principal = getattr(request, "user", None)
    pk = getattr(principal, "pk", None)
    if principal is None or not principal.is_authenticated or pk is None:
        raise ScopeMissing
    return of_user(principal)


def of_user(principal: Any) -> str:
    """Return the scope of a user: model and primary key."""
    return f"user:{_model_of(principal)}:{principal.pk}"


def _model_of(principal: Any) -> str:
    meta = getattr(principal, "_meta", None)
    if meta:
        label: str = meta.concrete_model._meta.label_lower
        return label
    # Of a lazy object this is the class of its user, and type() would be one class for all of them.
    # Two packages may each have a class of one name.
    kind = principal.__class__
    return f"{kind.__module__}.{kind.__qualname__}"


def of_tenant(name: Any, principal: str) -> str:
    """Return the scope of a principal within a tenant."""
    return f"tenant:{len(str(name))}:{name}:{principal}"


def of_endpoint(name: str, scope: str) -> str:
    """Return a scope at one endpoint."""
    return f"{len(name)}:{name}:{scope}"


def inner(scope: str) -> Iterator[str]:
    """Yield a scope, and what is left of it without a tenant or an endpoint before it."""
    yield scope
    while found := _BEFORE.match(scope):
        scope = scope[found.end() + int(found[1]) + 1 :]
        yield scope


def session(request: Any) -> str:
    """
    Return the scope of the visitor's session; raise ScopeMissing if the server knows none (R97).

    The scope has a hash, because it is stored and shown, and must not give access to a session.
    """
    visitor = getattr(request, "session", None)
    if not _is_live(visitor):
        raise ScopeMissing("The request has no session, or its session is gone.")
    return f"session:{hashlib.sha256(session_token(visitor).encode()).hexdigest()}"


def session_token(visitor: Any) -> str:
    """
    Return the token that names a session for as long as its data live; draw one if it has none.

    The token is part of the data, because a session's key changes with each login, and with each
    write if the data are in a cookie. A logout, and a login as another user, drop the data.
    """
    token: str | None = visitor.get(_NAME)  # loads it: one that is gone has no key then
    if token is None:
        # Two requests at once on an existing session derive the same token. A key that only the
        # cookie claims must never become a token: strangers may send the same key.
        key = visitor.session_key
        known = key is not None and visitor.exists(key)
        token = hashlib.sha256(key.encode()).hexdigest() if known else secrets.token_hex(32)
        visitor[_NAME] = token
    return token


def _is_live(visitor: Any) -> bool:
    """Whether the request came with a session that the server knows; changes nothing in it."""
    if visitor is None or visitor.session_key is None:
        return False
    named = _NAME in visitor  # loads it: one that is gone has no key then
    key = visitor.session_key
    if named or key is None:
        return key is not None
    return bool(visitor.exists(key) or type(visitor)(key).load())  # or a signed cookie


def user_or_session(request: Any) -> str:
    """Return the user, or a visitor's session: the scope of keys that come in forms (R89)."""
    try:
        return user(request)
    except ScopeMissing:
        return session(request)


def has_owner(request: Any) -> bool:
    """Whether a form's key has an owner: a user, or a session that is live (R97)."""
    try:
        user(request)
    except ScopeMissing:
        return _is_live(getattr(request, "session", None))
    return True


def anyone(request: Any) -> str:
    """Return one scope for all callers: any caller who knows a key gets its answer."""
    return "anyone"


def tenant_and_user(tenant: Callable[[Any], Any]) -> Callable[[Any], str]:
    """Return a scope made of the tenant that ``tenant(request)`` names and the user (R19)."""

    def scope(request: Any) -> str:
        name = tenant(request)
        if name is None:
            raise ScopeMissing("The request has no tenant.")
        return of_tenant(name, user(request))

    return scope
