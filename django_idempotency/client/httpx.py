"""Transports for httpx that add a key to unsafe requests and keep it over retries."""

from __future__ import annotations

import time
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any, cast

from django_idempotency.client.policy import SAFE_METHODS, Attempts, RetryPolicy
from django_idempotency.exceptions.base import missing

try:
    import anyio
    import httpx
except ModuleNotFoundError as error:
    raise missing("This client needs", "httpx", "httpx") from error

if TYPE_CHECKING:
    from typing import Self

__all__ = ["AsyncIdempotencyTransport", "IdempotencyTransport"]

#: The server may have done it, or not.
_NO_ANSWER = (
    httpx.NetworkError,
    httpx.ProxyError,
    httpx.RemoteProtocolError,
    httpx.TimeoutException,
)


class IdempotencyTransport(httpx.BaseTransport):
    """Sends each request through `transport`, as often as `policy` allows."""

    def __init__(
        self, transport: httpx.BaseTransport | None = None, *, policy: RetryPolicy | None = None
    ) -> None:
        self._transport = transport or httpx.HTTPTransport()
        self._policy = policy or RetryPolicy()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        attempts = _attempts_at(request, self._policy)
        while True:
            try:
                response = self._transport.handle_request(request)
                body = b""
                if attempts.reads(response.headers):
                    with closing(response):
                        body = b"".join(cast("httpx.SyncByteStream", response.stream))
                    response = _with_body(response, body)
            except _NO_ANSWER as error:
                pause = attempts.pause_after_error(error)
                if pause is None:
                    raise
            else:
                pause = _pause_after(response, body, attempts)
                if pause is None:
                    return response
                response.close()
            time.sleep(pause)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._transport.__exit__(*exc_info)


class AsyncIdempotencyTransport(httpx.AsyncBaseTransport):
    """The same for httpx.AsyncClient, under asyncio and trio."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._policy = policy or RetryPolicy()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        attempts = _attempts_at(request, self._policy)
        while True:
            try:
                response = await self._transport.handle_async_request(request)
                body = b""
                if attempts.reads(response.headers):
                    async with aclosing(response):
                        stream = cast("httpx.AsyncByteStream", response.stream)
                        body = b"".join([chunk async for chunk in stream])
                    response = _with_body(response, body)
            except _NO_ANSWER as error:
                pause = attempts.pause_after_error(error)
                if pause is None:
                    raise
            else:
                pause = _pause_after(response, body, attempts)
                if pause is None:
                    return response
                await response.aclose()
            await anyio.sleep(pause)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._transport.__aexit__(*exc_info)


def _attempts_at(request: httpx.Request, policy: RetryPolicy) -> Attempts:
    """Give an unsafe request its key, on the request itself: `error.request` has it, too."""
    if request.method not in SAFE_METHODS:
        request.headers.setdefault(policy.header, policy.new_key())
    # Of other streams, files of a form included, a second reading may give nothing, silently.
    repeatable = isinstance(request.stream, httpx.ByteStream)
    keyed = policy.header in request.headers
    return Attempts(policy, request.method, keyed=keyed, repeatable=repeatable)


def _with_body(response: httpx.Response, body: bytes) -> httpx.Response:
    """Return the response with a body that has been read, still encoded, and can be read again."""
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx.ByteStream(body),
        extensions=response.extensions,
    )


def _pause_after(response: httpx.Response, body: bytes, attempts: Attempts) -> float | None:
    if response.status_code >= 400 and body:
        try:
            body = _with_body(response, body).read()
        except httpx.DecodingError:  # the caller's to see; the status decides
            body = b""
    return attempts.pause_after_answer(response.status_code, response.headers, body)
