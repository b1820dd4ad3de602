"""uvicorn and gunicorn on the views of this package, and their clients."""

from __future__ import annotations

import http.client
import json
from typing import NamedTuple

import pytest

from tests.services.databases import environment_for_children
from tests.services.gunicorn import Gunicorn
from tests.services.uvicorn import HOST, Uvicorn


class Answer(NamedTuple):
    """An HTTP answer, read to its end."""

    status: int
    replayed: bool
    body: bytes


class Peer:
    """One client of a server, who sends each request on a connection of its own."""

    def __init__(self, server):
        self.server = server

    def open(self, path, key, body, *, method="POST", headers=None):
        """Send a request, and leave its answer unread."""
        body = json.dumps(body) if isinstance(body, dict) else body
        given = {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
        if key is not None:
            given["Idempotency-Key"] = key
        connection = http.client.HTTPConnection(HOST, self.server.port, timeout=60)
        chunked = "Transfer-Encoding" in given
        connection.request(method, path, body, given, encode_chunked=chunked)
        return connection

    def send(self, path, key, body, **arguments):
        """See `open`; read the answer."""
        connection = self.open(path, key, body, **arguments)
        try:
            response = connection.getresponse()
            replayed = response.headers.get("Idempotency-Replayed") == "true"
            return Answer(response.status, replayed, response.read())
        finally:
            connection.close()


def environment():
    return {**environment_for_children(), "IDEMPOTENCY_TEST_URLCONF": "tests.acceptance.asgi.urls"}


@pytest.fixture(scope="session")
def uvicorn(django_db_setup):
    """uvicorn on the test databases, one for all tests."""
    with Uvicorn("tests.services.asgi:application", env=environment()) as server:
        yield server


@pytest.fixture(scope="session")
def gunicorn(django_db_setup):
    """gunicorn, with one worker and thread."""
    app, one = "tests.services.wsgi:application", {"workers": 1, "threads": 1}
    with Gunicorn(app, env=environment(), **one) as server:
        yield server


@pytest.fixture
def peer(uvicorn, transactional_db):
    return Peer(uvicorn)


@pytest.fixture
def wsgi_peer(gunicorn, transactional_db):
    return Peer(gunicorn)
