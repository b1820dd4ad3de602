"""Which requests are sent again, after which answers, and when."""

from __future__ import annotations

import email.utils
import logging
import random
import re
import ssl
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from django_idempotency.client.problems import problem_in

logger = logging.getLogger("django_idempotency.client")

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


def quoted_uuid() -> str:
    """Return a new key as the structured string of the IETF draft: every server takes it."""
    return f'"{uuid.uuid4()}"'


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """
    How often and how long a client tries.

    The defaults outlast the default lease, 60 seconds: a request whose server died is finished.
    """

    #: The first one included.
    attempts: int = 20
    #: No attempt begins later than so many seconds after the first.
    seconds: float = 120.0
    #: The longest pause after the first attempt; it doubles with each further one.
    backoff: float = 0.25
    max_backoff: float = 10.0
    #: Statuses that are retried where no problem says otherwise. A 500 is often a bug: it stays.
    statuses: Collection[int] = frozenset({408, 425, 429, 502, 503, 504})
    header: str = "Idempotency-Key"
    new_key: Callable[[], str] = quoted_uuid

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}: 1 sends each request once, and never more")
        for name in ("seconds", "backoff", "max_backoff"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give seconds, 0 or more")


class Attempts:
    """The attempts at one request: whether there is another one, and after which pause."""

    def __init__(self, policy: RetryPolicy, method: str, *, keyed: bool, repeatable: bool) -> None:
        self._policy = policy
        self._method = method
        self._number = 1
        self._until = time.monotonic() + policy.seconds
        # An unsafe request without a key may be done twice, and half a body is another request.
        self._again = repeatable and (keyed or method in SAFE_METHODS) and policy.attempts > 1

    def reads(self, headers: Mapping[str, str]) -> bool:
        """
        Return whether the body is part of the attempt, so that one that breaks off is a retry.

        Not that of a safe request, which may be a long download, nor one that the server has not
        kept: a retry would not get it.
        """
        unsafe = self._method not in SAFE_METHODS
        return self._again and unsafe and headers.get("Idempotency-Stored") != "false"

    def pause_after_error(self, error: Exception) -> float | None:
        """Return the seconds until the next attempt; None if the error is the result."""
        if _is_certificate_error(error):
            return None
        return self._pause(0.0, type(error).__name__)

    def pause_after_answer(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> float | None:
        """Return the seconds until the next attempt; None if the answer is the result."""
        if status < 400 or headers.get("Idempotency-Replayed") == "true":  # kept: it stays
            return None
        if headers.get("Idempotency-Stored") == "false":  # the key does not hold a second run back
            return None
        problem = problem_in(headers.get("Content-Type", ""), body)
        if problem.retryable if problem else status in self._policy.statuses:
            return self._pause(_seconds(headers.get("Retry-After", "")), str(status))
        return None

    def _pause(self, asked: float, reason: str) -> float | None:
        """Return what was asked for, and a random part: clients must not come back in step."""
        doubled = self._policy.backoff * 2 ** min(self._number - 1, 50)
        pause = asked + random.uniform(0, min(doubled, self._policy.max_backoff))  # noqa: S311
        late = time.monotonic() + pause > self._until
        if not self._again or late or self._number >= self._policy.attempts:
            return None
        logger.info(
            "Attempt %d at a %s request has failed (%s); the next one follows in %.2f s.",
            self._number,
            self._method,
            reason,
            pause,
        )
        self._number += 1
        return pause


def _seconds(retry_after: str) -> float:
    """Return the seconds of a Retry-After field: a number or a date (RFC 9110, 10.2.3)."""
    if re.fullmatch(r"[0-9]+", retry_after):
        return float(retry_after) if len(retry_after) < 10 else float("inf")
    try:
        date = email.utils.parsedate_to_datetime(retry_after)
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def _is_certificate_error(error: BaseException | None) -> bool:
    """Return whether the server's certificate was refused: it will be the next time, too."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        # httpx chains its errors; requests and urllib3 give one to the other as an argument.
        inner = error.args[0] if error.args else None
        error = error.__cause__ or (inner if isinstance(inner, BaseException) else None)
    return error is not None
