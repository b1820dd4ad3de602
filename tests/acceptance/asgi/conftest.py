"""uvicorn on the views of this package, and its clients."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.services.databases import environment_for_children
from tests.services.uvicorn import HOST, Uvicorn

SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.headers.get("Idempotency-Replayed") == "true"


class Peer:
    """One client of a server, who sends each request on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def post(
        self,
        path: str,
        key: str | None,
        body: Any,
        *,
        method: str = "POST",
        chunked: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and read its answer; bytes and pieces of them are sent as they are."""
        connection = self.open(path, key, body, method=method, chunked=chunked, headers=headers)
        try:
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        """Send a GET and read its answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=SECONDS)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def open(
        self,
        path: str,
        key: str | None,
        body: Any,
        *,
        method: str = "POST",
        chunked: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPConnection:
        """Send a request, and leave its answer unread."""
        if isinstance(body, (str, dict, list)):
            body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
        if key is not None:
            given["Idempotency-Key"] = key
        if chunked:
            given["Transfer-Encoding"] = "chunked"
            body = _halves(body) if isinstance(body, bytes) else body
        connection = http.client.HTTPConnection(HOST, self.port, timeout=SECONDS)
        connection.request(method, path, body, given, encode_chunked=chunked)
        return connection


def _halves(body: bytes) -> Iterable[bytes]:
    middle = len(body) // 2
    return [half for half in (body[:middle], body[middle:]) if half]


@pytest.fixture(scope="module")
def server(django_db_setup: None) -> Iterator[Uvicorn]:
    """uvicorn on this folder's URLs and the test databases, one for all tests of a module."""
    env = {**environment_for_children(), "IDEMPOTENCY_TEST_URLCONF": "tests.acceptance.asgi.urls"}
    with Uvicorn("tests.services.asgi:application", env=env) as uvicorn:
        yield uvicorn


@pytest.fixture
def peer(server: Uvicorn, transactional_db: None) -> Peer:
    return Peer(server.port)
