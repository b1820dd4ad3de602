"""The part of a response that is kept and replayed (R25 to R31)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from django_idempotency.exceptions import ResultTooLarge

__all__ = ["Snapshot", "SnapshotCodec"]

#: The connection's, the server's or one caller's: never kept, though named (R30).
_NEVER = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "server",
        "set-cookie",
        "set-cookie2",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
    }
)
_NEVER_PREFIXES = ("access-control-", "idempotency-")
#: Of one request: kept where ``replay_headers`` names them.
_OF_ONE_REQUEST = frozenset(
    {
        "correlation-id",
        "request-id",
        "traceparent",
        "traceresponse",
        "tracestate",
        "x-amzn-requestid",
        "x-amzn-trace-id",
        "x-cloud-trace-context",
        "x-correlation-id",
        "x-request-id",
        "x-trace-id",
    }
)
_OF_ONE_REQUEST_PREFIXES = ("ratelimit", "x-rate-limit", "x-ratelimit")
#: The body is a file that the server in front of Django sends: here there is none to keep (R62).
_ELSEWHERE = frozenset(
    {
        "x-accel-redirect",
        "x-lighttpd-send-file",
        "x-litespeed-location",
        "x-reproxy-file",
        "x-reproxy-url",
        "x-sendfile",
        "x-sendfile2",
    }
)
#: These end with their header: a body after it would be read as the next answer (RFC 9112, 6.3).
_BODILESS = frozenset({204, 304})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class _Redirect(HttpResponse):
    """A replayed redirect: Django's test client and others look at its ``url``."""

    @property
    def url(self) -> str:
        return self.headers.get("Location", "")


@dataclass(frozen=True)
class Snapshot:
    """Status, kept header fields and body of a response, byte for byte."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def response(self) -> HttpResponse:
        """Return a new response that says what the first one said."""
        kind = _Redirect if 300 <= self.status < 400 else HttpResponse
        response = kind(self.body, status=self.status)
        del response["Content-Type"]
        for name, value in self.headers:
            response[name] = value
        return response


class SnapshotCodec:
    """
    Responses as bytes: the length of a JSON head, the head, the body.

    Encodes a rendered response and decodes to a `Snapshot`; the first caller keeps the response
    itself, cookies included (R36).
    """

    id: ClassVar[str] = "http"
    exact: ClassVar[bool] = True

    def __init__(self, replay_headers: Collection[str] = (), max_bytes: int = 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        named = {name.lower() for name in replay_headers}
        self._dropped = {name[1:] for name in named if name.startswith("-")}
        self._named = named - self._dropped

    def encode(self, result: HttpResponseBase) -> bytes:
        """
        Return the kept part of a response.

        Raises TypeError for a stream and for a body that is elsewhere, neither of which has bytes
        yet, and for an interim response; ResultTooLarge before anything of a large body is copied.
        """
        if elsewhere := [name for name, _ in result.items() if self._is_elsewhere(name)]:
            raise TypeError(f"A response whose body is where {elsewhere[0]} says cannot be kept.")
        if result.status_code < 200:
            raise TypeError("An interim response is no answer, and cannot be kept.")
        fields = [field for field in result.items() if self._keeps(field[0]) and _is_field(field)]
        head = json.dumps({"status": result.status_code, "headers": fields}).encode()
        body = self._body(result)
        size = 4 + len(head) + sum(map(len, body))
        if size > self._max_bytes:
            raise ResultTooLarge(
                f"The response has {size} bytes, and max_result_bytes allows {self._max_bytes}."
            )
        return b"".join((len(head).to_bytes(4, "big"), head, *body))

    def _body(self, response: HttpResponseBase) -> list[bytes]:
        """Return the body in parts; of a file no more than what, with a head, is too much (R62)."""
        if isinstance(response, HttpResponse):
            return list(response)
        file = getattr(response, "file_to_stream", None)
        if file is None or not hasattr(file, "seekable") or not file.seekable():
            raise TypeError("A streaming response cannot be kept.")
        start = file.tell()
        body: bytes = file.read(self._max_bytes)
        file.seek(start)
        return [body]

    def decode(self, payload: bytes) -> Snapshot:
        """Return the Snapshot that `encode` wrote; raise ValueError and the like for any other."""
        end = 4 + int.from_bytes(payload[:4], "big")
        head = json.loads(payload[4:end].decode())
        status, fields = head["status"], [(name, value) for name, value in head["headers"]]
        if len(payload) < end or type(status) is not int or not 200 <= status <= 599:
            raise ValueError("The stored response has no final status.")
        for field in fields:
            if not _is_field(field) or self._is_elsewhere(field[0]):
                raise ValueError("The stored response has a header field that was never kept.")
        kept = tuple(field for field in fields if self._keeps(field[0]))
        return Snapshot(status, kept, b"" if status in _BODILESS else payload[end:])

    def _keeps(self, name: str) -> bool:
        """Whether a header field belongs to the answer, or is said to."""
        name = name.lower()
        if name in _NEVER or name.startswith(_NEVER_PREFIXES) or name in self._dropped:
            return False
        of_one_request = name in _OF_ONE_REQUEST or name.startswith(_OF_ONE_REQUEST_PREFIXES)
        return name in self._named or not of_one_request

    def _is_elsewhere(self, name: str) -> bool:
        return name.lower() in _ELSEWHERE and name.lower() not in self._named


def _is_field(field: tuple[Any, Any]) -> bool:
    """Whether a name and a value can be sent: none of them ends a line, say (RFC 9110, 5.5)."""
    name, value = field
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None
