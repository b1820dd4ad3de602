"""The errors of a key as problem details (RFC 9457; R1, R78)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.functional import Promise
from django.utils.translation import get_language, gettext, override
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
from django_idempotency.http.content import ask
from django_idempotency.policy import HTTPPolicy

__all__ = [
    "PROBLEMS",
    "PROBLEM_TYPE",
    "Problem",
    "problem_of",
    "problem_response",
    "replay_refused",
]

#: The media type of a problem (RFC 9457).
PROBLEM_TYPE = "application/problem+json"
_TOLD = "_idempotency_problem"


@dataclass(frozen=True)
class Problem:
    """One type of problem; its code is the name of its page in the documentation."""

    code: str
    status: int
    title: str | Promise
    detail: str | Promise
    #: Whether the same request with the same key may be sent again.
    retryable: bool
    #: Whether a new key is safe. Not where the request has one: an earlier try may be done.
    safe_new_key: bool = False


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
)
_SCOPE_MISSING = Problem(
    "scope_missing",
    400,
    _("Idempotency-Key has no scope"),
    _(
        "The caller is anonymous, so it cannot be told whose idempotency key this is. Log in, and "
        "send the request again."
    ),
    retryable=False,
)
_REUSED = Problem(
    "idempotency_key_reused",
    422,
    _("Idempotency-Key is already used"),
    _("This idempotency key was used for another request. Use a new key for a new request."),
    retryable=False,
)
_IN_PROGRESS = Problem(
    "in_progress",
    409,
    _("A request is outstanding for this Idempotency-Key"),
    _("The first request with this idempotency key is still being processed. Try again later."),
    retryable=True,
)
_STALE = Problem(
    "stale",
    409,
    _("A request with this Idempotency-Key did not finish"),
    _("Its outcome is not known. An operator has to decide before this key can be used again."),
    retryable=False,
)
_LEASE_LOST = Problem(
    "lease_lost",
    409,
    _("Another request took over this Idempotency-Key"),
    _("This request took longer than its lease, and another one took over. Try again."),
    retryable=True,
)
_UNAVAILABLE = Problem(
    "result_unavailable",
    409,
    _("The result of this Idempotency-Key is not available"),
    _("The operation was completed, but its response was not kept and cannot be sent again."),
    retryable=False,
)
_STORE = Problem(
    "store_unavailable",
    503,
    _("Idempotency cannot be ensured at the moment"),
    _("The store of idempotency keys does not answer. Try again with the same key."),
    retryable=True,
)
_REFUSED = Problem(
    "replay_refused",
    403,
    _("The stored response may not be shown"),
    _("The caller is no longer allowed to see the response of this request."),
    retryable=False,
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
    Return the answer that reports `error` to the client.

    It is never cached, and reveals nothing of the stored request and response (R31, R39). Raises
    `error` again if it is not for clients.
    """
    problem = next((p for kind, p in PROBLEMS.items() if isinstance(error, kind)), None)
    if problem is None:
        raise error
    if isinstance(error, LeaseLost) and error.gone:
        problem = _STORE  # no other attempt took over: the completion could not be written (R60)
    status, headers = problem.status, {}
    if isinstance(error, InProgress):
        status = policy.in_progress_status
        problem = _STALE if error.stale else problem
        headers = {} if error.stale else {"Retry-After": str(error.retry_after)}
    elif isinstance(error, StoreError):
        headers = {"Retry-After": str(error.retry_after)}
    elif isinstance(error, FingerprintMismatch):
        status = policy.mismatch_status
    elif problem.retryable:
        headers = {"Retry-After": "1"}
    detail = _reason(error) if isinstance(error, InvalidKey) else problem.detail
    if settings.DEBUG:
        detail = f"{detail}{_to_developers(error)}"
    return _render(problem, status, detail, headers, request, policy, subject)


def problem_of(response: HttpResponseBase) -> Problem | None:
    """Return the problem of a guard's answer, None for any other response."""
    return getattr(response, _TOLD, None)


def replay_refused(request: HttpRequest, policy: HTTPPolicy, subject: Any) -> HttpResponse:
    """Return the answer to a replay that ``replay_check`` refuses (R34)."""
    return _render(_REFUSED, _REFUSED.status, _REFUSED.detail, {}, request, policy, subject)


def _reason(error: InvalidKey) -> str:
    """Return why a key is invalid; in the language of the request, if the error has a code."""
    if not error.code:
        return str(error)
    reason = gettext(error.message)
    return reason % error.params if error.params else reason


def _to_developers(error: IdempotencyError) -> str:
    """Return the text that a problem adds with DEBUG: its cause, and what to change in the code."""
    if isinstance(error, StoreError):
        return f" {error.told}"
    if isinstance(error, ScopeMissing):
        return (
            f" {error} Where a view needs a login, put @login_required above @idempotent, or "
            f"IsAuthenticated into permission_classes (REST framework). Where visitors may use it, "
            f"the scope says whose key it is: django_idempotency.http.scopes.session."
        )
    return ""


def _language(problem: Problem) -> str | None:
    """Return the language of the texts of `problem`: the request's, or None for English."""
    language, title = get_language(), str(problem.title)
    if language is None or language.partition("-")[0] == "en":
        return language
    with override(None):
        untranslated = str(problem.title)
    return None if title == untranslated else language


def _page(
    request: HttpRequest, members: dict[str, Any], status: int, language: str | None
) -> HttpResponse | None:
    """Return the page for a browser; None for a program (``*/*``), and if no page is found."""
    types = [PROBLEM_TYPE, "application/json", "text/html"]
    if not settings.TEMPLATES or request.get_preferred_type(types) != "text/html":
        return None
    try:
        template = get_template("django_idempotency/problem.html")
    except TemplateDoesNotExist:  # no engine of the project's looks into apps
        return None
    context = {"problem": members, "language": language or "en", "debug": settings.DEBUG}
    return HttpResponse(template.render(context, request), status=status)


def _render(
    problem: Problem,
    status: int,
    detail: str | Promise,
    headers: dict[str, str],
    request: HttpRequest,
    policy: HTTPPolicy,
    subject: Any,
) -> HttpResponse:
    pages = policy.documentation_url
    if not pages.endswith(("/", "#", "=")):  # a folder, a page's anchors or a query
        pages += "/"
    page = f"{pages}{problem.code}.html"
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
    language = _language(problem)
    if policy.error_renderer is not None:
        asked = request if subject is None else subject
        response: HttpResponse = ask("error_renderer", policy.error_renderer, asked, members)
    elif (html := _page(request, members, status, language)) is not None:
        response = html
    else:
        response = HttpResponse(json.dumps(members), status=status, content_type=PROBLEM_TYPE)
        language = language or "en"
    response.headers.setdefault("Link", f'<{page}>; rel="describedby"')
    if language is not None:  # a project's own page or renderer may add what we cannot
        response.headers.setdefault("Content-Language", language)
    for name, value in headers.items():
        response.headers.setdefault(name, value)
    response["Cache-Control"] = "no-store"
    setattr(response, _TOLD, problem)
    return response
