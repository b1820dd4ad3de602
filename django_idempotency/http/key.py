"""The key that a request carries, its scope, and how long its caller waits for another attempt."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import timedelta

from django.http import HttpRequest

from django_idempotency import keys
from django_idempotency.exceptions import InvalidKey, KeyRequired, ScopeMissing
from django_idempotency.http import scopes
from django_idempotency.http.content import ask, endpoint_of, form_key
from django_idempotency.http.handlers import ViewHandler
from django_idempotency.http.plans import ViewPlan
from django_idempotency.policy import Policy

#: How long the second click on a form's button waits for the page of the first (R89).
_FORM_WAIT = timedelta(seconds=10)
_NO_WAIT = timedelta(0)
_PREFER_WAIT = re.compile(r'(?:^|[,;\s])wait\s*=\s*"?(\d{1,6})', re.IGNORECASE)


def key_of(request: HttpRequest, plan: ViewPlan) -> tuple[str, bool]:
    """
    Return the key of a request, and whether it came in a form (R89).

    Raises KeyRequired or InvalidKey.
    """
    http = plan.http_policy
    field: str | None = request.META.get(plan.key_field)
    bounds = {"min_length": http.key_min_length, "max_length": http.key_max_length}
    if field is not None:
        key = keys.parse(field, strict=http.strict_header, **bounds)
    elif plan.form and (value := form_key(request, http)) is not None:
        if not value.isascii():
            raise InvalidKey(
                "The idempotency key must be ASCII, in a form as in a header.", code="not_ascii"
            )
        key = keys.check(value, **bounds)
    else:
        raise KeyRequired
    if http.key_validator is not None:
        _validate(key, http.key_validator)
    return key, field is None


def _validate(key: str, validator: Callable[[str], None] | str) -> None:
    """Apply the policy's ``key_validator`` (R10); raise InvalidKey."""
    if callable(validator):
        ask("key_validator", validator, key)
        return
    is_uuid = re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", key)
    if validator == "uuid" and not is_uuid:
        raise InvalidKey("The idempotency key must be a UUID.", code="not_uuid")
    if validator == "uuid7" and not (is_uuid and uuid.UUID(key).version == 7):
        raise InvalidKey("The idempotency key must be a UUID of version 7.", code="not_uuid7")


def scope_of(request: HttpRequest, plan: ViewPlan, handler: ViewHandler, *, from_form: bool) -> str:
    """Return whose key it is, by the policy; raise ScopeMissing for an anonymous caller."""
    http = plan.http_policy
    scope = http.scope or (scopes.user_or_session if from_form else handler.default_scope)
    found: str | None = ask("scope", scope, handler.subject)
    if found is not None and not issubclass(type(found), str):
        raise TypeError(f"scope must return a str, not {type(found).__name__}.")
    if not found:  # one bucket for all who name nobody would show them each other's answers
        raise ScopeMissing("The scope of this request is empty.")
    if not http.scope_endpoint:
        return found
    return scopes.of_endpoint(endpoint_of(request, plan.operation_name), found)


def wait_of(request: HttpRequest, policy: Policy, *, from_form: bool) -> timedelta:
    """Return how long this caller waits: the policy's time, or less if it prefers so (R51)."""
    wait = policy.wait_or(_FORM_WAIT if from_form else _NO_WAIT)
    if not wait:
        return wait
    preferred = _PREFER_WAIT.search(request.META.get("HTTP_PREFER") or "")
    return min(wait, timedelta(seconds=int(preferred[1]))) if preferred else wait
