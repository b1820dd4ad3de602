"""Calls of an API, and their answers, over connections of the standard library."""

from __future__ import annotations

import json
import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

__all__ = ["Answer", "Call", "Exchange", "SocketTransport", "Transport", "multipart"]

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"

Fields = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Call:
    """
    One request to an API, without its key and its caller.

    A body of bytes or text is sent as it is, pairs of texts as a form, None as no body, and
    anything else as JSON.
    """

    path: str
    body: Any = None
    method: str = "POST"
    content_type: str = ""
    headers: Fields = field(default=())

    @property
    def is_form(self) -> bool:
        """Whether the body is made of pairs."""
        return isinstance(self.body, (list, tuple)) and all(
            isinstance(pair, tuple) for pair in self.body
        )

    @property
    def payload(self) -> bytes:
        """The body as it is sent."""
        match self.body:
            case None:
                return b""
            case bytes():
                return self.body
            case str():
                return self.body.encode()
        return (urlencode(self.body) if self.is_form else json.dumps(self.body)).encode()

    @property
    def has_body(self) -> bool:
        """Whether a body is announced, be it an empty one."""
        return bool(self.payload) or self.method not in ("GET", "HEAD", "OPTIONS", "TRACE")

    @property
    def media_type(self) -> str:
        """The content type as it is sent."""
        return self.content_type or (FORM if self.is_form else JSON)

    def but(self, **changes: Any) -> Call:
        """Return the call with other attributes."""
        return replace(self, **changes)

    def with_query(self, query: str) -> Call:
        """Return the call with more in its query."""
        return self.but(path=f"{self.path}{'&' if '?' in self.path else '?'}{query}")


@dataclass(frozen=True)
class Answer:
    """What came back, read to its end."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed; ValueError if it is no JSON."""
        return json.loads(self.body)

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx or 3xx."""
        return 200 <= self.status < 400

    @property
    def code(self) -> str | None:
        """The code of a problem (R78), None for any other answer."""
        if self.headers.get_content_type() != "application/problem+json":
            return None
        members = self.json
        return members.get("code") if isinstance(members, dict) else None

    @property
    def retry_after(self) -> int:
        """The seconds of Retry-After, 0 if there is no such field or it holds a date."""
        value = self.headers.get("Retry-After", "")
        return int(value) if value.isdecimal() else 0

    def names(self) -> set[str]:
        """Return the names of the header fields, in lower case."""
        return {name.lower() for name in self.headers}

    def tells(self, text: str) -> bool:
        """Return whether `text` stands anywhere in the answer."""
        return text in self.body.decode(errors="replace") or text in str(self.headers)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {value}" for name, value in self.headers.items())
        return f"<{self.status} {fields} {self.body[:300]!r}>"


class Exchange(Protocol):
    """A request that was sent, and whose answer may be read, or never."""

    def answer(self) -> Answer:
        """Wait for the answer; ConnectionError if there is none."""

    def hang_up(self) -> None:
        """Give up the answer."""

    def close(self) -> None:
        """Give up the answer, and wait for the work's end where it is in this process."""


class Transport(Protocol):
    """How calls reach an API."""

    def send(
        self, base_url: str, call: Call, fields: Fields, *, seconds: float, chunked: bool = False
    ) -> Exchange:
        """
        Send a call; ConnectionError if the API is not there.

        `fields` are sent one line each, so that a name may stand twice. The answer may take so
        many seconds. A body that is `chunked` comes in two pieces, and its size is not announced.
        """

    def first_answered(self, exchanges: Sequence[Any], seconds: float) -> Any | None:
        """Return the one whose answer comes first; None if none comes in so many seconds."""


class SocketTransport:
    """Calls a server at a URL, over connections of the standard library."""

    def send(
        self, base_url: str, call: Call, fields: Fields, *, seconds: float, chunked: bool = False
    ) -> _SocketExchange:
        """See `Transport`."""
        parts = urlsplit(base_url)
        kind = _InOnePieceOverTLS if parts.scheme == "https" else _InOnePiece
        connection = kind(parts.netloc, timeout=seconds)
        payload = call.payload
        connection.putrequest(
            call.method, parts.path.rstrip("/") + call.path, skip_accept_encoding=True
        )
        for name, value in (("Connection", "close"), *call.headers, *fields):
            connection.putheader(name, value.encode("latin-1", errors="replace"))
        if call.has_body:
            kind_of_body = call.media_type.encode("latin-1", errors="replace")
            connection.putheader("Content-Type", kind_of_body)
            if chunked:
                connection.putheader("Transfer-Encoding", "chunked")
            else:
                connection.putheader("Content-Length", str(len(payload)))
        if chunked:
            middle = len(payload) // 2
            connection.endheaders([payload[:middle], payload[middle:]], encode_chunked=True)
        else:
            connection.endheaders(payload or None)
        connection.flush()
        return _SocketExchange(connection)

    def first_answered(
        self, exchanges: Sequence[_SocketExchange], seconds: float
    ) -> _SocketExchange | None:
        """See `Transport`."""
        readable, _, _ = select.select(exchanges, [], [], seconds)
        return readable[0] if readable else None


class _SocketExchange:
    """An exchange over a connection of its own."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection

    def answer(self) -> Answer:
        try:
            response: HTTPResponse = self._connection.getresponse()
            body = response.read()
        except HTTPException as error:
            raise ConnectionError(f"no whole answer: {error!r}") from error
        finally:
            self.hang_up()
        return Answer(response.status, response.headers, body)

    def hang_up(self) -> None:
        self._connection.close()

    close = hang_up

    def fileno(self) -> int:
        """Return the descriptor of the socket, for `select`."""
        return self._connection.sock.fileno()


class _InOnePiece(HTTPConnection):
    """
    Sends a request at once.

    A server that refuses it by its header closes the connection; if the body came later, the
    answer would be lost in a reset.
    """

    def __init__(self, host: str, *, timeout: float) -> None:
        super().__init__(host, timeout=timeout)
        self._pieces: list[bytes] = []

    def send(self, data: Any) -> None:
        """Keep what is to be sent."""
        self._pieces.append(bytes(data))

    def flush(self) -> None:
        """Send what was kept."""
        super().send(b"".join(self._pieces))


class _InOnePieceOverTLS(_InOnePiece, HTTPSConnection):
    pass


def multipart(
    fields: Iterable[tuple[str, str]],
    files: Iterable[tuple[str, str, str, bytes]],
    boundary: str,
) -> tuple[bytes, str]:
    """
    Return a multipart form and its content type.

    `files` are names of fields, names of files, types and contents.
    """
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields
    ]
    for name, filename, kind, content in files:
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; '
            f'filename="{filename}"\r\nContent-Type: {kind}\r\n\r\n'
        )
        parts.append(head.encode() + content + b"\r\n")
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"
