"""A large upload is guarded with flat memory, behind gunicorn and behind uvicorn."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.models import Effect
from tests.conftest import GunicornFactory
from tests.services.gunicorn import HOST
from tests.services.uvicorn import Uvicorn

pytestmark = [
    pytest.mark.processes,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc"),
]

MEGABYTE = 1024 * 1024
#: What the guard, Django and the view may need more than for a small upload.
ROOM = 40 * MEGABYTE
PIECE = bytes(range(256)) * 256
RAW = {"Content-Type": "application/octet-stream"}
FORM = {"Content-Type": "multipart/form-data; boundary=boundary"}
HEAD = (
    b'--boundary\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n'
    b"Content-Type: application/pdf\r\n\r\n"
)
TAIL = b"\r\n--boundary--\r\n"


def pieces(size: int, last: bytes = b"") -> Iterator[bytes]:
    """Yield that many bytes, whatever they are; `last` takes the place of the last ones."""
    left = size - len(last)
    while left:
        piece = PIECE[: min(left, len(PIECE))]
        left -= len(piece)
        yield piece
    yield last


def upload(
    port: int,
    path: str,
    key: str,
    size: int,
    *,
    method: str,
    headers: dict[str, str],
    last: bytes = b"",
) -> tuple[int, bool, Any]:
    """Send an upload in pieces; return status, whether it is a replay, and what the view says."""
    form = headers is FORM

    def body() -> Iterator[bytes]:
        if form:
            yield HEAD
        yield from pieces(size, last)
        if form:
            yield TAIL

    length = size + (len(HEAD) + len(TAIL) if form else 0)
    given = {"Idempotency-Key": key, "Connection": "close", "Content-Length": str(length)}
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(method, path, body(), {**given, **headers})
        response = connection.getresponse()
        said = json.loads(response.read())
        return response.status, response.headers.get("Idempotency-Replayed") == "true", said
    finally:
        connection.close()


def peak(pid: int) -> int:
    """Return the most bytes of memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.fixture
def size() -> int:
    """More than the room that is left; tests/proof has 200 MB."""
    return 60 * MEGABYTE


def is_flat(
    port: int, pid: int, path: str, method: str, headers: dict[str, str], size: int
) -> None:
    def send(key: str, size: int, last: bytes = b"") -> tuple[int, bool, Any]:
        return upload(port, path, key, size, method=method, headers=headers, last=last)

    assert send("small", 4 * MEGABYTE)[0] == 201
    before = peak(pid)

    first = send("large", size)
    again = send("large", size)
    other = send("large", size, last=b"?")
    after = peak(pid)

    digest = hashlib.sha256()
    for piece in pieces(size):
        digest.update(piece)
    assert first[:2] == (201, False)
    assert digest.hexdigest() in json.dumps(first[2])
    assert again == (201, True, first[2])
    assert other[0] == 422
    assert Effect.objects.count() == 2
    assert after - before < ROOM, f"grew by {(after - before) / MEGABYTE:.0f} MB"


@pytest.mark.leg("postgres18")
@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        pytest.param("/receive/", "POST", RAW, id="raw"),
        pytest.param("/receive/", "PUT", FORM, id="PUT form"),
    ],
)
def test_R43_large_uploads_behind_gunicorn(
    gunicorn: GunicornFactory, path: str, method: str, headers: dict[str, str], size: int
) -> None:
    env = {"IDEMPOTENCY_TEST_URLCONF": "tests.unit.forms.urls"}
    server = gunicorn(workers=1, threads=1, worker_class="gthread", env=env, probe="/order/")
    [pid] = server.worker_pids()

    is_flat(server.port, pid, path, method, headers, size)


@pytest.mark.leg("postgres18")
def test_R43_large_uploads_behind_uvicorn(process_environment: dict[str, str], size: int) -> None:
    env = {**process_environment, "IDEMPOTENCY_TEST_URLCONF": "tests.unit.forms.urls"}
    with Uvicorn("tests.services.asgi:application", env=env, probe="/order/") as server:
        is_flat(server.port, server.pid, "/async/", "POST", RAW, size)
