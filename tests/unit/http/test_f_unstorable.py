"""Section F, R62: streams, files, and responses that are too large to keep."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from rest_framework.request import Request

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, bare_body, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import answering

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(("then", "size"), [("stream", 2), ("large", 2 * 1024 * 1024)])
def test_R62_what_cannot_be_kept_is_delivered_and_protected(
    api: Api, mode: str, atomic_requests: bool, runs: list[str], then: str, size: int
) -> None:
    first = api.then(then)
    delivered = bare_body(first)
    retries = [api.then(then) for _ in range(2)]

    assert first.status_code == 200
    assert first.headers["Idempotency-Stored"] == "false"
    assert len(delivered) == size
    for retry in retries:
        assert problem(retry) == (409, "result_unavailable")
        assert retry.json()["retryable"] is False
        assert "Idempotency-Replayed" not in retry.headers
        assert "Retry-After" not in retry.headers
    assert len(runs) == 1
    assert Effect.objects.count() == 1
    assert IdempotencyRecord.objects.get().state == "COMPLETED"


def test_R62_other_requests_still_do_not_match(api: Api, mode: str) -> None:
    api.then("large")

    assert problem(api.then("stream")) == (422, "idempotency_key_reused")


@pytest.mark.parametrize(("size", "stored"), [(500, True), (1000, False)])
def test_R62_max_result_bytes_is_the_limit_of_what_is_stored(
    api: Api, mount: Mount, mode: str, runs: list[str], size: int, stored: bool
) -> None:
    """The limit is 1000 bytes, header fields included."""
    body = b"x" * size
    url = mount(
        answering(
            lambda request: HttpResponse(body, content_type="text/plain"),
            idempotency_max_result_bytes=1000,
        )
    )

    first, again = api(path=url), api(path=url)

    assert first.content == body
    assert first.headers.get("Idempotency-Stored") == (None if stored else "false")
    assert replayed(again) == stored
    if not stored:
        assert problem(again) == (409, "result_unavailable")
    assert len(runs) == 1


def test_R62_large_error_that_was_raised_is_protected_too(
    api: Api, mode: str, atomic_requests: bool, policy: SetPolicy, runs: list[str]
) -> None:
    policy(MAX_RESULT_BYTES=1)

    first, again = api.then("raised", status=409), api.then("raised", status=409)

    assert first.status_code == 409
    assert first.headers["Idempotency-Stored"] == "false"
    assert problem(again) == (409, "result_unavailable")
    assert len(runs) == 1
    assert Effect.objects.count() == (mode == "separate" and not atomic_requests)


def test_R62_large_answer_that_is_not_kept_anyway(
    api: Api, mode: str, policy: SetPolicy, runs: list[str]
) -> None:
    policy(MAX_RESULT_BYTES=1)

    first, again = api.then("invalid"), api.then("invalid")

    assert first.status_code == again.status_code == 400
    assert "Idempotency-Stored" not in first.headers
    assert len(runs) == 2


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF" + bytes(range(256)) * 40)
    return path


@pytest.mark.parametrize("source", ["file", "memory"])
def test_R62_file_is_kept(
    api: Api, mount: Mount, mode: str, runs: list[str], document: Path, source: str
) -> None:
    def answer(request: Request) -> FileResponse:
        content: Any = document.open("rb") if source == "file" else io.BytesIO(b"%PDF memory")
        return FileResponse(content, as_attachment=True, filename="report.pdf")

    expected = document.read_bytes() if source == "file" else b"%PDF memory"
    url = mount(answering(answer))
    first = api(path=url)
    delivered = bare_body(first)
    document.unlink()
    again = api(path=url)

    assert delivered == expected
    assert "Idempotency-Stored" not in first.headers
    assert replayed(again)
    assert bare_body(again) == expected
    for name in ("Content-Type", "Content-Disposition", "Content-Length"):
        assert again.headers[name] == first.headers[name]
    assert len(runs) == 1


def test_R62_file_is_closed(api: Api, mount: Mount, document: Path) -> None:
    opened: list[Any] = []

    def answer(request: Request) -> FileResponse:
        opened.append(document.open("rb"))
        return FileResponse(opened[0])

    bare_body(api(path=mount(answering(answer))))

    assert opened[0].closed


def test_R62_file_above_the_limit_is_delivered_and_protected(
    api: Api, mount: Mount, mode: str, runs: list[str], document: Path
) -> None:
    url = mount(
        answering(
            lambda request: FileResponse(document.open("rb")), idempotency_max_result_bytes=1000
        )
    )

    first = api(path=url)
    delivered = bare_body(first)
    again = api(path=url)

    assert delivered == document.read_bytes()
    assert first.headers["Idempotency-Stored"] == "false"
    assert problem(again) == (409, "result_unavailable")
    assert len(runs) == 1


def test_R62_stream_is_not_consumed_by_the_guard(api: Api, mount: Mount) -> None:
    drawn = []

    def chunks() -> Any:
        for chunk in (b"a", b"b"):
            drawn.append(chunk)
            yield chunk

    response = api(path=mount(answering(lambda request: StreamingHttpResponse(chunks()))))
    before = list(drawn)

    assert before == []
    assert bare_body(response) == b"ab"
