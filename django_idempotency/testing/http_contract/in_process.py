"""Calls of an application in this process: no server, and no socket."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from email.message import Message
from email.utils import formatdate
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit
from wsgiref.util import FileWrapper

from django_idempotency.testing.http_contract.wire import Answer, Call, Fields

__all__ = ["ASGITransport", "WSGITransport"]

WSGIApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]
ASGIApplication = Callable[[dict[str, Any], Any, Any], Awaitable[None]]

#: Where an application in this process is, unless its contract says otherwise.
BASE_URL = "http://testserver"


def _start(work: Callable[[], None]) -> None:
    """Work in another thread, which does not keep a process that would end."""
    Thread(target=work, name="HTTPContract", daemon=True).start()


class _Exchange:
    """A request that an application works on in another thread."""

    def __init__(
        self, future: Future[Answer], seconds: float, hang_up: Callable[[], None] = lambda: None
    ) -> None:
        self.future = future
        self._seconds = seconds
        self._hang_up = hang_up

    def answer(self) -> Answer:
        try:
            return self.future.result(self._seconds)
        except FutureTimeout:
            raise TimeoutError(f"no answer in {self._seconds} s") from None
        except BaseException as error:
            raise ConnectionError(f"no whole answer: {error!r}") from error

    def hang_up(self) -> None:
        self._hang_up()

    def close(self) -> None:
        self.hang_up()
        wait([self.future], self._seconds)


class _InProcess:
    def first_answered(self, exchanges: Sequence[_Exchange], seconds: float) -> _Exchange | None:
        """See `Transport`."""
        wait([exchange.future for exchange in exchanges], seconds, FIRST_COMPLETED)
        return next((exchange for exchange in exchanges if exchange.future.done()), None)


class WSGITransport(_InProcess):
    """
    Calls a WSGI application, each request in a thread of its own, as under a threaded server.

    A client that hangs up goes unnoticed.
    """

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def send(
        self, base_url: str, call: Call, fields: Fields, *, seconds: float, chunked: bool = False
    ) -> _Exchange:
        """See `Transport`."""
        environ = _environ(_Request(base_url, call, fields, chunked=chunked))
        future: Future[Answer] = Future()
        _start(lambda: self._work(environ, future))
        return _Exchange(future, seconds)

    def _work(self, environ: dict[str, Any], future: Future[Answer]) -> None:
        """Fill the future when nothing is left to do in this thread."""
        try:
            answer = self._answer(environ)
        except BaseException as error:
            _close_connections()
            future.set_exception(error)
        else:
            _close_connections()
            future.set_result(answer)

    def _answer(self, environ: dict[str, Any]) -> Answer:
        started: list[tuple[str, Fields]] = []
        written: list[bytes] = []

        def start_response(status: str, fields: Fields, exc_info: Any = None) -> Any:
            started.append((status, fields))
            return written.append

        body = self._application(environ, start_response)
        try:
            written += body
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()
        status, fields = started[-1]
        return _answer_of(environ["REQUEST_METHOD"], int(status[:3]), fields, b"".join(written))


class ASGITransport(_InProcess):
    """
    Calls an ASGI application; requests at the same time share an event loop, as under a server.

    The loop runs in a thread of its own, for as long as there are requests. A client that hangs
    up is announced as a server does. There is no lifespan.
    """

    def __init__(self, application: ASGIApplication) -> None:
        self._application = application
        self._lock = Lock()
        self._open = 0
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def send(
        self, base_url: str, call: Call, fields: Fields, *, seconds: float, chunked: bool = False
    ) -> _Exchange:
        """See `Transport`."""
        request = _Request(base_url, call, fields, chunked=chunked)
        gone = asyncio.Event()
        with self._lock:
            if self._running is None:
                started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
                _start(lambda: asyncio.run(_loop(started)))
                self._running = started.result()
            self._open += 1
            loop, _ = self._running
            future = asyncio.run_coroutine_threadsafe(self._work(request, gone), loop)

        def hang_up() -> None:
            with suppress(RuntimeError):  # the loop has ended, and so has the request
                loop.call_soon_threadsafe(gone.set)

        return _Exchange(future, seconds, hang_up)

    async def _work(self, request: _Request, gone: asyncio.Event) -> Answer:
        try:
            return await self._answer(request, gone)
        finally:
            with self._lock:
                self._open -= 1
                if not self._open and self._running is not None:
                    self._running[1].set()
                    self._running = None

    async def _answer(self, request: _Request, gone: asyncio.Event) -> Answer:
        pieces = list(request.pieces)
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if pieces:
                piece = pieces.pop(0)
                return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._application(_scope(request), receive, send)
        if not sent or sent[-1].get("more_body"):
            raise ConnectionError("the application has not answered")
        fields = [
            (name.decode("latin-1"), text.decode("latin-1")) for name, text in sent[0]["headers"]
        ]
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return _answer_of(request.method, sent[0]["status"], fields, body)


async def _loop(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    """Run until there are no more requests."""
    ended = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), ended))
    await ended.wait()


class _Request:
    """What a server has read of a request."""

    def __init__(self, base_url: str, call: Call, fields: Fields, *, chunked: bool) -> None:
        url = urlsplit(base_url or BASE_URL)
        path, _, query = call.path.partition("?")
        self.method = call.method
        self.scheme = url.scheme
        self.host = url.hostname or ""
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.raw_path = (url.path.rstrip("/") + path).encode()
        self.path = unquote_to_bytes(self.raw_path)
        self.query = query.encode()
        payload = call.payload
        self.payload = payload
        middle = len(payload) // 2
        self.pieces = [payload[:middle], payload[middle:]] if chunked else [payload]
        announced = []
        if call.has_body:
            announced.append(("Content-Type", call.media_type))
            announced.append(
                ("Transfer-Encoding", "chunked")
                if chunked
                else ("Content-Length", str(len(payload)))
            )
        #: Names in lower case; texts without the white space around them, one byte a character.
        self.fields = [
            (name.lower(), text.encode("latin-1", errors="replace").decode("latin-1").strip(" \t"))
            for name, text in (("Host", url.netloc), *call.headers, *fields, *announced)
        ]


def _environ(request: _Request) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.path.decode("latin-1"),
        "QUERY_STRING": request.query.decode("latin-1"),
        "SERVER_NAME": request.host,
        "SERVER_PORT": str(request.port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": io.BytesIO(request.payload),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileWrapper,
    }
    for name, text in request.fields:
        variable = name.upper().replace("-", "_")
        if variable not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            variable = f"HTTP_{variable}"
        if variable in environ:
            text = f"{environ[variable]}{'; ' if name == 'cookie' else ','}{text}"
        environ[variable] = text
    return environ


def _scope(request: _Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path.decode(errors="replace"),
        "raw_path": request.raw_path,
        "query_string": request.query,
        "root_path": "",
        "headers": [
            (name.encode("latin-1"), text.encode("latin-1")) for name, text in request.fields
        ],
        "client": ("127.0.0.1", 1),
        "server": (request.host, request.port),
    }


def _answer_of(method: str, status: int, fields: Fields, body: bytes) -> Answer:
    """Return an answer as a server sends it: with a date, and without a body that must not be."""
    headers = Message()
    for name, text in fields:
        headers[name] = text
    if "Date" not in headers:
        headers["Date"] = formatdate(usegmt=True)
    if method == "HEAD" or status in (204, 304):
        body = b""
    return Answer(status, headers, body)


def _close_connections() -> None:
    """Close this thread's connections to databases: no other request will use them."""
    from django.conf import settings

    if settings.configured:
        from django.db import connections

        connections.close_all()
