"""An adapter for requests that adds a key to unsafe requests and keeps it over retries."""

from __future__ import annotations

import io
import time
from contextlib import closing
from typing import Any

from django_idempotency.client.policy import SAFE_METHODS, Attempts, RetryPolicy
from django_idempotency.exceptions.base import missing

try:
    import requests
except ModuleNotFoundError as error:
    raise missing("This client needs", "requests", "requests") from error

from requests.adapters import HTTPAdapter
from requests.utils import rewind_body
from urllib3 import HTTPResponse
from urllib3.exceptions import DecodeError, ProtocolError, ReadTimeoutError, SSLError

__all__ = ["IdempotencyAdapter"]

#: The server may have done it, or not.
_NO_ANSWER = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)


class IdempotencyAdapter(HTTPAdapter):
    """
    Sends each request as often as `policy` allows.

    The loop is here, not in urllib3's Retry: that one never sees the body of an answer.
    """

    __attrs__: list[str] = [*HTTPAdapter.__attrs__, "policy"]  # noqa: RUF012, as the base has it

    def __init__(self, *args: Any, policy: RetryPolicy | None = None, **kwargs: Any) -> None:
        self.policy = policy or RetryPolicy()
        super().__init__(*args, **kwargs)

    def send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        method, header = str(request.method), self.policy.header
        if method not in SAFE_METHODS:
            # On the request itself: `error.request` has it, too.
            request.headers.setdefault(header, self.policy.new_key())
        streamed = not isinstance(request.body, str | bytes | None)
        attempts = Attempts(
            self.policy,
            method,
            keyed=header in request.headers,
            repeatable=not streamed or isinstance(getattr(request, "_body_position", None), int),
        )
        while True:
            try:
                response = super().send(request, *args, **kwargs)
                body = b""
                if attempts.reads(response.headers):
                    body = _read(response)
            except _NO_ANSWER as error:
                error.request = request  # requests leaves it out where a body breaks off
                pause = attempts.pause_after_error(error)
                if pause is None:
                    raise
            else:
                pause = attempts.pause_after_answer(response.status_code, response.headers, body)
                if pause is None:
                    return response
                response.close()
            time.sleep(pause)
            if streamed:
                rewind_body(request)


def _read(response: requests.Response) -> bytes:
    """Read the body, give the connection back, and leave a body that can be read again."""
    raw: HTTPResponse = response.raw
    try:
        with closing(response):
            body = raw.read(decode_content=False)
    except ProtocolError as error:  # as `response.content` tells these
        raise requests.exceptions.ChunkedEncodingError(error) from error
    except ReadTimeoutError as error:
        raise requests.ConnectionError(error) from error
    except SSLError as error:
        raise requests.exceptions.SSLError(error) from error
    response.raw = _with_body(raw, body)
    if response.status_code < 400:
        return body
    try:
        return _with_body(raw, body).read(decode_content=True)
    except DecodeError:  # the caller's to see; the status decides
        return b""


def _with_body(raw: HTTPResponse, body: bytes) -> HTTPResponse:
    """Return urllib3's response with a body that has been read, still encoded."""
    return HTTPResponse(
        io.BytesIO(body),
        headers=raw.headers,
        status=raw.status,
        version=raw.version,
        reason=raw.reason,
        preload_content=False,
        # Session takes the cookies from here.
        original_response=raw._original_response,
    )
