"""What an answer says about a retry in its body: the members of a problem."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Problem:
    """The members of a guard's error that programs read; see the pages about problems."""

    code: str
    #: Whether the same request with the same key may be sent again.
    retryable: bool
    #: Whether a new key is safe: true for a request that had no key, where one is required.
    safe_new_key: bool
    detail: str


class Answer(Protocol):
    """A response of httpx or of requests."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> bytes: ...


def problem_of(response: Answer) -> Problem | None:
    """Return the problem that a response of httpx or requests reports, None for all others."""
    return problem_in(response.headers.get("Content-Type", ""), response.content)


def problem_in(content_type: str, body: bytes) -> Problem | None:
    """
    Return the problem in a body.

    A project's `error_renderer` may send it as plain JSON, so the members count, not the type.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        return None
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        return None
    match members:
        case {"code": str(code), "retryable": bool(retryable), "safe_new_key": bool(new_key)}:
            return Problem(code, retryable, new_key, str(members.get("detail", "")))
    return None
