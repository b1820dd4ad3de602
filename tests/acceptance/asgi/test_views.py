"""Sync and async views behind uvicorn: what each request of one key is told."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.asgi.conftest import Answer, Peer
from tests.app.models import Effect
from tests.services.processes import wait_until
from tests.unit.forms.conftest import multipart

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

each_view = pytest.mark.parametrize(
    "path", ["/sync/", "/async/", "/async/joined/", "/async/single/"]
)


@each_view
def test_R24_first_R25_again_R26_one_effect(peer: Peer, path: str) -> None:
    first, *rest = (peer.post(path, "key-1", {"name": "pay"}) for _ in range(4))

    assert (first.status, first.replayed) == (201, False)
    assert [(answer.status, answer.replayed) for answer in rest] == [(201, True)] * 3
    assert {answer.body for answer in rest} == {first.body}
    assert Effect.objects.count() == 2


@each_view
def test_R37_other_body_is_422_and_R1_no_key_is_400(peer: Peer, path: str) -> None:
    peer.post(path, "key-1", {"name": "pay"})

    other = peer.post(path, "key-1", {"name": "other"})
    missing = peer.post(path, None, {"name": "pay"})

    assert (other.status, other.code) == (422, "idempotency_key_reused")
    assert (missing.status, missing.code) == (400, "idempotency_key_missing")
    assert list(Effect.objects.values_list("name", flat=True)) == ["pay", "pay"]


# On SQLite `single` and `joined` work holds the only write lock: a duplicate waits for it.
@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/sync/", marks=pytest.mark.leg("postgres18", "postgres16")),
        pytest.param("/async/joined/", marks=pytest.mark.leg("postgres18", "postgres16")),
        pytest.param("/async/single/", marks=pytest.mark.leg("postgres18", "postgres16")),
        "/sync/separate/",
        "/async/",
    ],
)
def test_R49_while_the_first_runs_409_then_a_replay(
    peer: Peer, threads: ThreadPoolExecutor, tmp_path: Path, path: str
) -> None:
    go = tmp_path / "go"
    body = {"name": "pay", "directory": str(tmp_path), "wait_for": str(go)}
    waiting = threads.submit(peer.post, path, "key-1", body)
    wait_until((tmp_path / "pay.begun").exists, seconds=10, what="the view")

    try:
        during = peer.post(path, "key-1", body)
    finally:
        go.touch()
    first = waiting.result(10)
    after = peer.post(path, "key-1", body)

    assert (during.status, during.code) == (409, "in_progress")
    assert (first.status, first.replayed) == (201, False)
    assert (after.status, after.replayed, after.body) == (201, True, first.body)
    assert Effect.objects.count() == 2


def test_R51_waiting_duplicates_all_get_the_answer(
    peer: Peer, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    body = {"name": "pay", "directory": str(tmp_path), "wait_for": str(go)}
    waiting = threads.submit(peer.post, "/waiting/", "key-1", body)
    wait_until((tmp_path / "pay.begun").exists, seconds=10, what="the view")
    duplicates = [threads.submit(peer.post, "/waiting/", "key-1", body) for _ in range(5)]

    # The loop is free for others while they wait.
    assert json.loads(peer.get("/").body) == {"at work": 1}
    assert not any(duplicate.done() for duplicate in duplicates)
    go.touch()
    first = waiting.result(10)
    answers = [duplicate.result(10) for duplicate in duplicates]

    assert (first.status, first.replayed) == (201, False)
    assert [(answer.status, answer.replayed) for answer in answers] == [(201, True)] * 5
    assert {answer.body for answer in answers} == {first.body}
    assert Effect.objects.count() == 2


@pytest.mark.parametrize("path", ["/sync/", "/async/"])
def test_R50_equal_requests_at_once_run_once(
    peer: Peer, threads: ThreadPoolExecutor, path: str
) -> None:
    sent = [threads.submit(peer.post, path, "key-1", {"name": "pay"}) for _ in range(24)]

    answers = [answer.result(60) for answer in sent]

    first = [answer for answer in answers if answer.status == 201 and not answer.replayed]
    others = [answer for answer in answers if answer not in first]
    assert len(first) == 1
    assert all(answer.replayed or answer.code == "in_progress" for answer in others)
    assert Effect.objects.count() == 2


@pytest.mark.parametrize("path", ["/sync/", "/async/"])
@pytest.mark.parametrize("first_chunked", [False, True], ids=["sized first", "chunked first"])
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
