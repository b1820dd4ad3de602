"""R43, R46: bodies in chunks and of a size, at servers that know the difference."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.acceptance.asgi.conftest import Answer, Peer
from tests.app.models import Effect
from tests.conftest import GunicornFactory
from tests.services.gunicorn import HOST
from tests.unit.forms.conftest import multipart

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize(("path", "first_chunked"), [("/sync/", False), ("/async/", True)])
def test_R46_chunked_equals_sized(peer: Peer, path: str, first_chunked: bool) -> None:
    body = {"name": "pay", "amount": 10}
    spelled = b'{"amount":10,"name":"pay"}'

    first = peer.post(path, "key-1", body, chunked=first_chunked)
    again = peer.post(path, "key-1", spelled, chunked=not first_chunked)
    other = peer.post(path, "key-1", {"name": "pay", "amount": 11}, chunked=not first_chunked)

    assert (first.status, first.replayed) == (201, False)
    assert (again.status, again.replayed) == (201, True)
    assert other.status == 422


def test_R43_large_raw_upload_chunked_and_sized(peer: Peer) -> None:
    body = b"0123456789abcdef" * 250_000  # 4 MB, over DATA_UPLOAD_MAX_MEMORY_SIZE
    headers = {"Content-Type": "application/octet-stream"}

    first = peer.post("/upload/", "key-1", body, headers=headers)
    again = peer.post("/upload/", "key-1", body, headers=headers, chunked=True)
    other = peer.post("/upload/", "key-1", body[:-1] + b"F", headers=headers, chunked=True)

    assert json.loads(first.body)["size"] == len(body)
    assert (again.status, again.replayed) == (201, True)
    assert other.status == 422
    assert Effect.objects.count() == 1


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_R43_chunked_forms_with_other_files_are_other_requests(peer: Peer, method: str) -> None:
    """No parser of Django reads a form without a length: the view itself does, from the stream."""

    def send(content: bytes) -> Answer:
        body, kind = multipart(("file", "a", "text/plain", content))
        headers = {"Content-Type": kind}
        return peer.post("/upload/", "key-1", body, method=method, headers=headers, chunked=True)

    first, again, other = send(b"one"), send(b"one"), send(b"two")

    assert json.loads(first.body)["size"] == len(multipart(("file", "a", "text/plain", b"one"))[0])
    assert (again.status, again.replayed) == (201, True)
    assert other.status == 422


@pytest.mark.leg("postgres18")
def test_R46_chunked_behind_WSGI_is_the_empty_body_that_django_makes_of_it(
    gunicorn: GunicornFactory,
) -> None:
    """Django reads as many bytes as Content-Length says there."""
    env = {"IDEMPOTENCY_TEST_URLCONF": "tests.unit.forms.urls"}
    server = gunicorn(workers=1, threads=1, env=env, probe="/order/")

    def upload(body: Any, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(HOST, server.port, timeout=30)
        given = {"Idempotency-Key": "key-1", "Content-Type": "text/plain", **headers}
        try:
            connection.request(
                "POST", "/receive/", body, given, encode_chunked="Transfer-Encoding" in headers
            )
            response = connection.getresponse()
            return json.loads(response.read())["size"], response.headers["Idempotency-Replayed"]
        finally:
            connection.close()

    assert upload([b"one", b"two"], **{"Transfer-Encoding": "chunked"}) == (0, None)
    assert upload(b"") == (0, "true")
