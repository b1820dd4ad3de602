"""The errors of a key as problem details (RFC 9457; R1, R78)."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.functional import Promise
from django.utils.translation import get_language, gettext, override

from django_idempotency.exceptions import (
    FingerprintMismatch,
    IdempotencyError,
    InProgress,
    InvalidKey,
    KeyRequired,
    LeaseLost,
    ScopeMissing,
    StoreError,
)
from django_idempotency.exceptions.refusals import (
    REPLAY_REFUSED,
    STORE_UNAVAILABLE,
    Refusal,
    refusal_of,
)
from django_idempotency.http.content import ask
from django_idempotency.policy import HTTPPolicy

#: The media type of a problem (RFC 9457).
PROBLEM_TYPE = "application/problem+json"
_TOLD = "_idempotency_problem"


def problem_response(
    error: IdempotencyError, request: HttpRequest, policy: HTTPPolicy, subject: Any = None
) -> HttpResponse:
    """
    Return the answer that reports `error` to the client.

    It is never cached, and reveals nothing of the stored request and response (R31, R39). Raises
    `error` again if it is not for clients.
    """
    problem = refusal_of(error)
    if problem is None:
        raise error
    if isinstance(error, LeaseLost) and error.gone:
        problem = STORE_UNAVAILABLE  # no other attempt took over: nothing could be written (R60)
    status, headers = problem.status, {}
    if isinstance(error, InProgress):
        status = policy.in_progress_status
        headers = {} if error.stale else {"Retry-After": str(error.retry_after)}
    elif isinstance(error, StoreError):
        headers = {"Retry-After": str(error.retry_after)}
    elif isinstance(error, FingerprintMismatch):
        status = policy.mismatch_status
    elif problem.retryable:
        headers = {"Retry-After": "1"}
    detail = _reason(error) if isinstance(error, InvalidKey) else problem.detail
    if settings.DEBUG:
        detail = f"{detail}{_to_developers(error, request, policy)}"
    return _render(problem, status, detail, headers, request, policy, subject)


def problem_of(response: HttpResponseBase) -> Refusal | None:
    """Return the problem of a guard's answer, None for any other response."""
    return getattr(response, _TOLD, None)


def replay_refused(request: HttpRequest, policy: HTTPPolicy, subject: Any) -> HttpResponse:
    """Return the answer to a replay that ``replay_check`` refuses (R34)."""
    problem = REPLAY_REFUSED
    return _render(problem, problem.status, problem.detail, {}, request, policy, subject)


def _reason(error: InvalidKey) -> str:
    """Return why a key is invalid; in the language of the request, if the error has a code."""
    if not error.code:
        return str(error)
    reason = gettext(error.message)
    return reason % error.params if error.params else reason


def _to_developers(error: IdempotencyError, request: HttpRequest, policy: HTTPPolicy) -> str:
    """Return the text that a problem adds with DEBUG: its cause, and what to change in the code."""
    if isinstance(error, StoreError):
        return f" {error.told}"
    if isinstance(error, KeyRequired):
        near = [name for name in request.headers if "idempoten" in name.lower()]
        return f" The field is {policy.header}, and not {near[0]}." if near else ""
    if isinstance(error, ScopeMissing):
        return (
            f" {error} Where a view needs a login, put @login_required above @idempotent, or "
            f"IsAuthenticated into permission_classes (REST framework). Where visitors may use it, "
            f"the scope says whose key it is: django_idempotency.http.scopes.session."
        )
    return ""


def _language(problem: Refusal) -> str | None:
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
    problem: Refusal,
    status: int,
    detail: str | Promise,
    headers: dict[str, str],
    request: HttpRequest,
    policy: HTTPPolicy,
    subject: Any,
) -> HttpResponse:
    pages = policy.documentation_url
    if pages.endswith(("#", "=")):  # a page's anchors, or a query
        page = f"{pages}{problem.code}"
    else:
        page = f"{pages.removesuffix('/')}/{problem.code}.html"
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
