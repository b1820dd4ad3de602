"""What goes wrong with a key, as problem details (RFC 9457; R1, R78)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.functional import Promise
from django.utils.module_loading import import_string
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

from django_idempotency.exceptions import (
    FingerprintMismatch,
    IdempotencyError,
    InProgress,
    InvalidKey,
    KeyRequired,
    LeaseLost,
    ResultUnavailable,
    ScopeMissing,
    StoreError,
)
from django_idempotency.policy import HTTPPolicy

__all__ = ["PROBLEMS", "Problem", "problem_response", "replay_refused"]


@dataclass(frozen=True)
class Problem:
    """One type of problem: its page in the documentation is named by its code."""

    code: str
    status: int
    title: str | Promise
    detail: str | Promise
    #: Whether the same request with the same key may be sent again.
    retryable: bool
    #: Whether a new key is safe: nothing of this operation can have been done, or will be.
    safe_new_key: bool


_MISSING = Problem(
    "idempotency_key_missing",
    400,
    _("Idempotency-Key is missing"),
    _("This operation requires an idempotency key, and the request has none."),
    retryable=False,
    safe_new_key=True,
)
_INVALID = Problem(
    "idempotency_key_invalid",
    400,
    _("Idempotency-Key is invalid"),
    _("The idempotency key is not valid."),
    retryable=False,
    safe_new_key=True,
)
_SCOPE_MISSING = Problem(
    "scope_missing",
    400,
    _("Idempotency-Key has no scope"),
    _("The caller is anonymous, so it cannot be told whose idempotency key this is."),
    retryable=False,
    safe_new_key=True,
)
_REUSED = Problem(
    "idempotency_key_reused",
    422,
    _("Idempotency-Key is already used"),
    _("This idempotency key was used for another request. Use a new key for a new request."),
    retryable=False,
    safe_new_key=True,
)
_IN_PROGRESS = Problem(
    "in_progress",
    409,
    _("A request is outstanding for this Idempotency-Key"),
    _("The first request with this idempotency key is still being processed. Try again later."),
    retryable=True,
    safe_new_key=False,
)
_STALE = Problem(
    "stale",
    409,
    _("A request with this Idempotency-Key did not finish"),
    _("Its outcome is not known. An operator has to decide before this key can be used again."),
    retryable=False,
    safe_new_key=False,
)
_LEASE_LOST = Problem(
    "lease_lost",
    409,
    _("Another request took over this Idempotency-Key"),
    _("This request took longer than its lease, and another one took over. Try again."),
    retryable=True,
    safe_new_key=False,
)
_UNAVAILABLE = Problem(
    "result_unavailable",
    409,
    _("The result of this Idempotency-Key is not available"),
    _("The operation was completed, but its response was not kept and cannot be sent again."),
    retryable=False,
    safe_new_key=False,
)
_STORE = Problem(
    "store_unavailable",
    503,
    _("Idempotency cannot be ensured at the moment"),
    _("The store of idempotency keys does not answer. Try again with the same key."),
    retryable=True,
    safe_new_key=False,
)
_REFUSED = Problem(
    "replay_refused",
    403,
    _("The stored response may not be shown"),
    _("The caller is no longer allowed to see the response of this request."),
    retryable=False,
    safe_new_key=False,
)

PROBLEMS: dict[type[IdempotencyError], Problem] = {
    KeyRequired: _MISSING,
    InvalidKey: _INVALID,
    ScopeMissing: _SCOPE_MISSING,
    FingerprintMismatch: _REUSED,
    InProgress: _IN_PROGRESS,
    LeaseLost: _LEASE_LOST,
    ResultUnavailable: _UNAVAILABLE,
    StoreError: _STORE,
}


def problem_response(
    error: IdempotencyError, request: HttpRequest, policy: HTTPPolicy, subject: Any = None
) -> HttpResponse:
    """
    Return the answer that tells the client of `error`.

    Never cached, and silent about the stored request and response (R31, R39). Raises `error` again
    if it is none that a client should be told of.
    """
    problem = next((p for kind, p in PROBLEMS.items() if isinstance(error, kind)), None)
    if problem is None:
        raise error
    status, headers = problem.status, {}
    if isinstance(error, InProgress):
        status = policy.in_progress_status
        problem = _STALE if error.stale else problem
        headers = {} if error.stale else {"Retry-After": str(error.retry_after)}
    elif isinstance(error, FingerprintMismatch):
        status = policy.mismatch_status
    elif problem.retryable:
        headers = {"Retry-After": "1"}
    detail = str(error) if isinstance(error, InvalidKey) else problem.detail
    return _render(problem, status, detail, headers, request, policy, subject)


def replay_refused(request: HttpRequest, policy: HTTPPolicy, subject: Any) -> HttpResponse:
    """Return the answer where ``replay_check`` says no (R34)."""
    return _render(_REFUSED, _REFUSED.status, _REFUSED.detail, {}, request, policy, subject)


def _prefers_html(request: HttpRequest) -> bool:
    """Whether a browser asks, and not a program (``*/*``), of a project that has templates."""
    types = ["application/problem+json", "application/json", "text/html"]
    return bool(settings.TEMPLATES) and request.get_preferred_type(types) == "text/html"


def _render(
    problem: Problem,
    status: int,
    detail: str | Promise,
    headers: dict[str, str],
    request: HttpRequest,
    policy: HTTPPolicy,
    subject: Any,
) -> HttpResponse:
    page = f"{policy.documentation_url}{problem.code}.html"
    members: dict[str, Any] = {
        "type": page,
        "title": str(problem.title),
        "status": status,
        "detail": str(detail),
        "instance": request.path,
        "code": problem.code,
        "retryable": problem.retryable,
        "safe_new_key": problem.safe_new_key,
    }
    renderer = policy.error_renderer
    if renderer is not None:
        render = import_string(renderer) if isinstance(renderer, str) else renderer
        response: HttpResponse = render(subject or request, members)
    elif _prefers_html(request):
        response = HttpResponse(
            render_to_string("django_idempotency/problem.html", {"problem": members}, request),
            status=status,
        )
    else:
        response = HttpResponse(
            json.dumps(members), status=status, content_type="application/problem+json"
        )
    response.headers.setdefault("Link", f'<{page}>; rel="describedby"')
    if language := get_language():
        response.headers.setdefault("Content-Language", language)
    for name, value in headers.items():
        response.headers.setdefault(name, value)
    response["Cache-Control"] = "no-store"
    return response
