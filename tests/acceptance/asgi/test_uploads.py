"""R43, R46: large uploads with flat memory, and bodies in chunks, at servers."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.app.models import Effect
from tests.unit.forms.conftest import multipart

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

MEGABYTE = 1024 * 1024
#: What the guard, Django and the view may need more than for a small upload.
ROOM = 40 * MEGABYTE
PIECE = bytes(range(256)) * 256
RAW = {"Content-Type": "application/octet-stream"}
FORM = {"Content-Type": "multipart/form-data; boundary=boundary"}
CHUNKED = {"Transfer-Encoding": "chunked"}
HEAD, TAIL = multipart(("file", "a.pdf", "application/pdf", b"|"))[0].split(b"|")


def pieces(size, last=b""):
    """Yield that many bytes, whatever they are; `last` takes the place of the last ones."""
    left = size - len(last)
    while left:
        piece = PIECE[: min(left, len(PIECE))]
        left -= len(piece)
        yield piece
    yield last


def peak(pid):
    """Return the most bytes of memory that a process has had since the last time."""
    [found] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return int(found) * 1024


@pytest.fixture
def size():
    """More than the room that is left; tests/proof has 200 MB."""
    return 60 * MEGABYTE


def is_flat(peer, pid, path, method, headers, size):
    """Send a large upload twice, and another one."""
    head, tail = (HEAD, TAIL) if headers is FORM else (b"", b"")

    def send(key, size, last=b""):
        given = {**headers, "Content-Length": str(len(head) + size + len(tail))}
        body = (piece for part in ([head], pieces(size, last), [tail]) for piece in part)
        return peer.send(path, key, body, method=method, headers=given)

    assert send("small", 4 * MEGABYTE).status == 201
    peak(pid)
    before = peak(pid)
    first, again, other = send("large", size), send("large", size), send("large", size, last=b"?")
    grown = peak(pid) - before

    digest = hashlib.sha256()
    for piece in pieces(size):
        digest.update(piece)
    assert (first.status, first.replayed) == (201, False)
    assert digest.hexdigest() in first.body.decode()
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert other.status == 422
    assert Effect.objects.count() == 2
    assert grown < ROOM, f"grew by {grown / MEGABYTE:.0f} MB"


reads_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


@reads_proc
@pytest.mark.leg("postgres18")
@pytest.mark.parametrize(("method", "headers"), [("POST", RAW), ("PUT", FORM)], ids=["raw", "form"])
def test_R43_large_uploads_behind_gunicorn(wsgi_peer, method, headers, size):
    [pid] = wsgi_peer.server.worker_pids()

    is_flat(wsgi_peer, pid, "/forms/receive/", method, headers, size)


@reads_proc
@pytest.mark.leg("postgres18")
def test_R43_large_uploads_behind_uvicorn(peer, size):
    is_flat(peer, peer.server.pid, "/forms/async/", "POST", RAW, size)


@pytest.mark.leg("postgres18")
def test_R46_chunked_behind_WSGI_is_the_empty_body_that_django_makes_of_it(wsgi_peer):
    """Django reads as many bytes as Content-Length says there."""
    text = {"Content-Type": "text/plain"}

    first = wsgi_peer.send("/upload/", "key-1", [b"one", b"two"], headers=text | CHUNKED)
    again = wsgi_peer.send("/upload/", "key-1", b"", headers=text)

    assert json.loads(first.body)["size"] == 0
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
