"""The verdict on an answer: what becomes of its record."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.http.response import HttpResponseBase
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch

from django_idempotency.http.content import ask
from django_idempotency.http.problems import problem_of
from django_idempotency.policy import HTTPPolicy

#: Nothing was executed: the corrected request may use the key (R55).
_RELEASED = frozenset({400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429})


def verdict_on(
    policy: HTTPPolicy, response: HttpResponseBase, error: BaseException | None = None
) -> str:
    """
    Return "keep", "release" or "fail" by the policy's ``keep`` (R55, R56).

    For the handler's response, or what `error` became. What a guard within the work, of another key
    or request, says of its key is no answer of the work's: what may be sent again may be claimed
    again, with the same fingerprint.
    """
    if (problem := problem_of(response)) is not None:
        return "fail" if problem.retryable else "release"
    keep, status = policy.keep, response.status_code
    if callable(keep):
        verdict: str = ask("keep", keep, response, error)
        if verdict not in ("keep", "release", "fail"):
            raise ValueError(f"keep must return 'keep', 'release' or 'fail', not {verdict!r}.")
        return verdict
    if leads_to_login(response):
        return "release"
    if keep == "stripe":
        return "keep"
    if keep == "success":
        return "keep" if status < 400 else "fail"
    if status >= 500:
        return "fail"
    return "release" if status in _RELEASED else "keep"


def leads_to_login(response: HttpResponseBase) -> bool:
    """Whether a response redirects to LOGIN_URL: a login may give the caller other rights (R34)."""
    if response.status_code != 302 or not settings.LOGIN_URL:
        return False
    try:
        login = urlsplit(resolve_url(settings.LOGIN_URL))
        target = urlsplit(response.headers.get("Location", ""))
    except (NoReverseMatch, ValueError):
        return False
    return target.path == login.path and login.netloc in ("", target.netloc)
