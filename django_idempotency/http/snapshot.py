"""The part of a response that is kept and replayed (R25 to R31)."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from django.http import HttpResponse
from django.http.response import HttpResponseBase

__all__ = ["Snapshot", "SnapshotCodec"]

#: Header fields that belong to the answer, and not to the connection or the one request (R30).
KEPT_HEADERS = frozenset(
    {
        "content-type",
        "content-language",
        "content-disposition",
        "content-encoding",
        "location",
        "content-location",
        "etag",
        "last-modified",
        "link",
        "vary",
    }
)
#: Never kept, whatever the policy's ``replay_headers`` name.
NEVER_KEPT = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "server",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
    }
)


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
        cors = {name for name in named if name.startswith("access-control-")}
        self._kept = (KEPT_HEADERS | named) - NEVER_KEPT - cors

    def encode(self, result: HttpResponseBase) -> bytes:
        """Return the kept part of a response; TypeError for a stream, which has no bytes yet."""
        body = self._body(result)
        kept = self._kept | {"retry-after"} if result.status_code == 202 else self._kept
        headers = [(name, value) for name, value in result.items() if name.lower() in kept]
        head = json.dumps({"status": result.status_code, "headers": headers}).encode()
        return len(head).to_bytes(4, "big") + head + body

    def _body(self, response: HttpResponseBase) -> bytes:
        """Return the body; of a file no more than what is too much already (R62)."""
        if isinstance(response, HttpResponse):
            return response.content
        file = getattr(response, "file_to_stream", None)
        if file is None or not hasattr(file, "seekable") or not file.seekable():
            raise TypeError("A streaming response cannot be kept.")
        start = file.tell()
        body: bytes = file.read(self._max_bytes + 1)
        file.seek(start)
        return body

    def decode(self, payload: bytes) -> Any:
        """Return the Snapshot that `encode` wrote."""
        end = 4 + int.from_bytes(payload[:4], "big")
        head = json.loads(payload[4:end])
        headers = tuple((str(name), str(value)) for name, value in head["headers"])
        return Snapshot(int(head["status"]), headers, payload[end:])
