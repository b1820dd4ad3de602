"""The part of a response that is kept and replayed (R25 to R31)."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase, ResponseHeaders

from django_idempotency.exceptions import ResultTooLarge

#: The attribute of a response with the names of header fields that its replays leave out.
LEFT_OUT = "_idempotency_left_out"

#: Fields of the connection, the server or one caller: never kept, even if named (R30).
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
_OURS = "idempotency-"
_NEVER_PREFIXES = ("access-control-", _OURS)
#: Fields that a replay has, too, with values of its own.
_REPLACED = frozenset({"content-length", "date", "server"})
#: Fields of one request: kept only if ``replay_headers`` names them.
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
#: Fields that have the server in front of Django send a file: there is no body to keep (R62).
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
_encode = json.JSONEncoder().encode
_decode = json.JSONDecoder().decode


class _Redirect(HttpResponse):
    """A replayed redirect: Django's test client and others look at its ``url``."""

    @property
    def url(self) -> str:
        return self.headers.get("Location", "")


def is_stream(response: HttpResponseBase) -> bool:
    """Whether the body is made while it is sent: no bytes, and no file that can be read twice."""
    return not isinstance(response, HttpResponse) and _file_of(response) is None


def _file_of(response: HttpResponseBase) -> Any:
    """Return the file behind a response if it can be read twice, or else None."""
    file: Any = getattr(response, "file_to_stream", None)
    return file if hasattr(file, "seekable") and file.seekable() else None


@dataclass(frozen=True)
class Snapshot:
    """Status, kept header fields and body of a response, byte for byte."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def response(self, *added: tuple[str, str]) -> HttpResponse:
        """Return a new response, equal to the first one but for the header fields `added`."""
        kind = _Redirect if 300 <= self.status < 400 else HttpResponse
        response = kind(self.body, status=self.status, content_type="")
        # In the place of the Content-Type that Django gives each response.
        response.headers._store = dict(_fields((*self.headers, *added)))
        return response


@functools.lru_cache(maxsize=64)
def _fields(headers: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, str]]:
    """Return header fields as Django's ``ResponseHeaders`` keeps them, once it has checked each."""
    fields: dict[str, tuple[str, str]] = ResponseHeaders(dict(headers))._store
    return fields


class SnapshotCodec:
    """
    Responses as bytes: the length of a JSON head, the head, the body.

    Encodes a rendered response and decodes to a `Snapshot`; the first caller keeps the response
    itself, cookies included (R36).
    """

    id = "http"
    exact = True

    def __init__(self, replay_headers: Collection[str] = (), max_bytes: int = 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        named = {name.lower() for name in replay_headers}
        self._dropped = {name[1:] for name in named if name.startswith("-")}
        self._named = named - self._dropped
        #: The results of `_place` by name: a project sends the same few.
        self._place_of = functools.lru_cache(maxsize=256)(self._place)
        #: The results of `_write_head` and `_read_head`: a view's answers often have equal heads.
        self._head_for = functools.lru_cache(maxsize=32)(self._write_head)
        self._head_of = functools.lru_cache(maxsize=32)(self._read_head)

    def encode(self, result: HttpResponseBase) -> bytes:
        """
        Return the kept part of a response.

        Raises TypeError for an interim response, and for a stream or a body that is elsewhere,
        which have no bytes yet. Raises ResultTooLarge before it copies any part of a large body.
        """
        if result.status_code < 200:
            raise TypeError("An interim response is no answer, and cannot be kept.")
        headers = result.headers
        # What `items()` gives, which looks each one up again; a project may put in any mapping.
        given = headers._store.values() if type(headers) is ResponseHeaders else headers.items()
        fields = [*given]
        kept = tuple([field for field in fields if self._place_of(field[0]) != "dropped"])
        head, unfit = self._head_for(result.status_code, kept)
        if unfit or result.cookies or len(kept) < len(fields):
            setattr(result, LEFT_OUT, self._left_out(result, fields, unfit))
        body = self._body(result)
        size = len(head) + sum(map(len, body))
        if size > self._max_bytes:
            raise ResultTooLarge(
                f"The response has {size} bytes, and max_result_bytes allows {self._max_bytes}."
            )
        return b"".join((head, *body))

    def _left_out(
        self, response: HttpResponseBase, fields: list[tuple[str, str]], unfit: list[str]
    ) -> list[str]:
        """Return the names of fields that the caller of the first request alone gets."""
        names = [name for name, _ in fields if self._place_of(name) == "dropped"] + unfit
        if response.cookies:
            names.append("Set-Cookie")
        expected = _REPLACED | self._dropped
        return [
            name
            for name in names
            if name.lower() not in expected and not name.lower().startswith(_OURS)
        ]

    def _write_head(
        self, status: int, headers: tuple[tuple[str, str], ...]
    ) -> tuple[bytes, list[str]]:
        """Return status and header fields as they are kept, and the names of what cannot be."""
        kept, unfit = [], []
        for name, value in headers:
            place = self._place_of(name)
            if place == "elsewhere":
                raise TypeError(f"A response whose body is where {name} says cannot be kept.")
            if place == "kept" and _VALUE.fullmatch(value):
                kept.append((name, value))
            else:
                unfit.append(name)
        head = _encode({"status": status, "headers": kept}).encode()
        return len(head).to_bytes(4, "big") + head, unfit

    def _body(self, response: HttpResponseBase) -> list[bytes]:
        """Return the body in parts; of a large file only enough to exceed the limit (R62)."""
        if isinstance(response, HttpResponse):
            return list(response)
        file = _file_of(response)
        if file is None:
            raise TypeError("A streaming response cannot be kept.")
        start = file.tell()
        body: bytes = file.read(self._max_bytes)
        file.seek(start)
        return [body]

    def decode(self, payload: bytes) -> Snapshot:
        """Return the Snapshot that `encode` wrote; raise ValueError or the like for other bytes."""
        end = 4 + int.from_bytes(payload[:4], "big")
        if len(payload) < end:
            raise ValueError("The stored response is cut short.")
        status, headers = self._head_of(payload[4:end])
        return Snapshot(status, headers, b"" if status in _BODILESS else payload[end:])

    def _read_head(self, text: bytes) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Return status and header fields of a stored response's head."""
        head = _decode(text.decode())
        status, kept = head["status"], []
        if type(status) is not int or not 200 <= status <= 599:
            raise ValueError("The stored response has no final status.")
        for name, value in head["headers"]:
            place = self._place_of(name)
            if place in ("elsewhere", "nowhere") or not _VALUE.fullmatch(value):
                raise ValueError("The stored response has a header field that was never kept.")
            if place == "kept":
                kept.append((name, value))
        return status, tuple(kept)

    def _place(self, name: str) -> str:
        """
        Return whether header fields of a name are "kept" with the answer or "dropped".

        "elsewhere" means that the body is not in the response. "nowhere" means that no field may
        have such a name: it might end a line, for example (RFC 9110, section 5.1).
        """
        if not _NAME.fullmatch(name):
            return "nowhere"
        name = name.lower()
        if name in _ELSEWHERE and name not in self._named:
            return "elsewhere"
        if name in _NEVER or name.startswith(_NEVER_PREFIXES) or name in self._dropped:
            return "dropped"
        of_one_request = name in _OF_ONE_REQUEST or name.startswith(_OF_ONE_REQUEST_PREFIXES)
        return "dropped" if of_one_request and name not in self._named else "kept"
