"""A browser that sends requests straight into Django's WSGI and ASGI handlers."""

from __future__ import annotations

import asyncio
import gzip
import io
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any

from asgiref.sync import ThreadSensitiveContext, iscoroutinefunction, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.utils.decorators import sync_and_async_middleware

from tests.proof.pairs.databases import TENANTS
from tests.proof.pairs.features import Case

__all__ = ["Answer", "Browser", "body_of", "without_csrf"]

BOUNDARY = "pairs-boundary"


@dataclass(frozen=True)
class Answer:
    """What a request was answered with."""

    status: int
    headers: dict[str, str]
    #: The names of the cookies that it set or deleted.
    cookies: dict[str, str]
    body: bytes


def body_of(case: Case, key: str) -> tuple[str, bytes]:
    """Return the content type and the body of the case's requests."""
    hidden = {"idempotency_key": key} if case.key == "form" else {}
    match case.body.removeprefix("chunked_"):
        case "json":
            return "application/json", b'{"name": "\xc3\xa9"}'  # e with an accent, in UTF-8
        case "large":
            return "application/x-www-form-urlencoded", b"name=" + b"a" * 100
        case "form":
            fields = {"name": "a", **hidden}
            text = "&".join(f"{name}={value}" for name, value in fields.items())
            return "application/x-www-form-urlencoded", text.encode()
        case "multipart":
            parts = [f'name="{name}"\r\n\r\n{value}' for name, value in hidden.items()]
            parts.append('name="name"\r\n\r\na')
            parts.append('name="file"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\nall')
            lines = [f"--{BOUNDARY}\r\nContent-Disposition: form-data; {part}" for part in parts]
            text = "\r\n".join([*lines, f"--{BOUNDARY}--", ""])
            return f"multipart/form-data; boundary={BOUNDARY}", text.encode()
    return "application/octet-stream", b"\x00\x01 raw"


@sync_and_async_middleware
def without_csrf(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Spare a session's requests their CSRF tokens, as Django's test client does."""

    if iscoroutinefunction(get_response):

        async def amiddleware(request: Any) -> Any:
            request._dont_enforce_csrf_checks = True
            return await get_response(request)

        return amiddleware

    def middleware(request: Any) -> Any:
        request._dont_enforce_csrf_checks = True
        return get_response(request)

    return middleware


@dataclass
class Browser:
    """Keeps the cookies that it gets."""

    case: Case
    cookies: dict[str, str] = field(default_factory=dict)
    tenant: str = TENANTS[0]
    #: What follows the content type.
    charset: str = ""

    def post(self, key: str) -> Answer:
        """Send the case's request under this key; take over its cookies."""
        content_type, body = body_of(self.case, key)
        content_type += self.charset
        headers = {"Content-Type": content_type, "Accept": "*/*", "Accept-Encoding": "gzip"}
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if self.case.schema == "tenant":
            headers["X-Tenant"] = self.tenant
        if self.case.key == "header":
            headers["Idempotency-Key"] = key
        send = _asgi if self.case.server == "asgi" else _wsgi
        chunks = [body[:5], body[5:]] if self.case.body.startswith("chunked") else [body]
        status, fields, content = send(headers, chunks)
        cookies: dict[str, str] = {}
        for name, value in fields:
            if name.lower() == "set-cookie":
                for cookie, morsel in SimpleCookie(value).items():
                    cookies[cookie] = "deleted" if morsel["max-age"] == "0" else "set"
                    if cookies[cookie] == "deleted" or not morsel.value:
                        self.cookies.pop(cookie, None)
                    else:
                        self.cookies[cookie] = morsel.value
        if ("Content-Encoding", "gzip") in fields:  # padded at random, against BREACH
            content = gzip.decompress(content)
        plain = {name: value for name, value in fields if name.lower() != "set-cookie"}
        return Answer(status, plain, cookies, content)


Sent = tuple[int, list[tuple[str, str]], bytes]


def _wsgi(headers: dict[str, str], chunks: Iterable[bytes]) -> Sent:
    body = b"".join(chunks)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/pay/",
        "SCRIPT_NAME": "",
        "QUERY_STRING": "",
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.version": (1, 0),
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in headers.items():
        variable = name.upper().replace("-", "_")
        environ[variable if name == "Content-Type" else f"HTTP_{variable}"] = value
    started: list[Any] = []
    response: Any = WSGIHandler()(environ, lambda *given: started.append(given))
    try:
        content = b"".join(response)
    finally:
        response.close()
    [(status, fields, *_)] = started
    return int(status.split()[0]), fields, content


def _asgi(headers: dict[str, str], chunks: Iterable[bytes]) -> Sent:
    return asyncio.run(_aasgi(headers, list(chunks)))


async def _aasgi(headers: dict[str, str], chunks: list[bytes]) -> Sent:
    fields = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    if len(chunks) == 1:
        fields.append((b"content-length", str(len(chunks[0])).encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/pay/",
        "raw_path": b"/pay/",
        "query_string": b"",
        "headers": fields,
        "scheme": "http",
        "server": ("testserver", 80),
        "client": ("127.0.0.1", 1),
    }
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    for number, chunk in enumerate(chunks, 1):
        more = number < len(chunks)
        incoming.put_nowait({"type": "http.request", "body": chunk, "more_body": more})
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async with ThreadSensitiveContext():  # the request's own is then this one
        try:
            await ASGIHandler()(scope, incoming.get, send)
        finally:
            await sync_to_async(connections.close_all)()
    start = next(message for message in sent if message["type"] == "http.response.start")
    told = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
    content = b"".join(message.get("body", b"") for message in sent)
    return start["status"], told, content
