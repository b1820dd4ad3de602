"""An endpoint in front of a server that can turn requests away, as a busy table does."""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Throttle"]


class Throttle:
    """
    Forward each request to the server at `url`, or answer it with an error.

    A context manager. Each request has a connection of its own.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._until, self._times = 0.0, math.inf
        self._error, self._operation, self._applied = "", "", False
        self._status = 400
        #: Requests that were turned away.
        self.refused = 0
        throttle = self

        class Front(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                throttle._serve(self)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Front)
        self._server.daemon_threads = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="test-throttle"
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def begin(
        self,
        *,
        seconds: float = 3600,
        times: float = math.inf,
        error: str = "ProvisionedThroughputExceededException",
        status: int = 400,
        operation: str = "",
        applied: bool = False,
    ) -> None:
        """
        Turn requests away: those that come within so many seconds, and no more than so many.

        With an `operation`, such as ``CreateTable``, those alone. With `applied` the server does
        what it is asked, as it has when it is asked again after a lost answer.
        """
        self._error, self._status, self._operation = error, status, operation
        self._applied = applied
        self._until, self._times = time.monotonic() + seconds, times

    def end(self) -> None:
        """Let everything through again."""
        self._until = 0.0

    def __enter__(self) -> Throttle:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        meant = request.headers["X-Amz-Target"].endswith(self._operation)
        refused = meant and time.monotonic() < self._until and self._times > 0
        if not refused or self._applied:
            connection = http.client.HTTPConnection(*self._target, timeout=30)
            connection.request("POST", "/", body, dict(request.headers))
            response = connection.getresponse()
            status, answer = response.status, response.read()
            connection.close()
        if refused:
            self.refused += 1
            self._times -= 1
            kind = f"com.amazonaws.dynamodb.v20120810#{self._error}"
            status, answer = self._status, json.dumps({"__type": kind, "message": "."}).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/x-amz-json-1.0")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)
