"""R43 at plain views: forms with files, and bodies that are one file."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile

from django_idempotency.http import content
from tests.app.models import Effect
from tests.unit.forms.conftest import Part, Send, multipart
from tests.unit.http.api import problem, replayed

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.unit.forms.urls")]

PARTS: tuple[Part, ...] = (
    ("title", None, None, b"Report"),
    ("file", "a.pdf", "application/pdf", b"%PDF one"),
    ("more", "b.txt", "text/plain", b"two"),
)
#: Above DATA_UPLOAD_MAX_MEMORY_SIZE and FILE_UPLOAD_MAX_MEMORY_SIZE.
LARGE = b"0123456789abcdef" * 250_000

each_method = pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def form(*parts: Part, boundary: str = "boundary", method: str = "POST") -> dict[str, Any]:
    body, content_type = multipart(*parts, boundary=boundary)
    return {"body": body, "content_type": content_type, "method": method}


@each_method
def test_R43_a_new_boundary_is_the_same_request(send: Send, method: str) -> None:
    first = send(**form(*PARTS, boundary="one", method=method))
    again = send(**form(*PARTS, boundary="another", method=method))

    assert first.status_code == 201
    assert replayed(again)
    assert again.content == first.content
    assert Effect.objects.count() == 1


@each_method
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(("file", "a.pdf", "application/pdf", b"%PDF onE"), id="byte"),
        pytest.param(("file", "A.pdf", "application/pdf", b"%PDF one"), id="file name"),
        pytest.param(("file", "a.pdf", "application/x-pdf", b"%PDF one"), id="type"),
        pytest.param(("other", "a.pdf", "application/pdf", b"%PDF one"), id="name"),
        pytest.param(("file", None, None, b"%PDF one"), id="no file"),
    ],
)
def test_R43_a_changed_file_is_another_request(send: Send, changed: Part, method: str) -> None:
    title, _, more = PARTS

    send(**form(*PARTS, method=method))
    other = send(**form(title, changed, more, method=method))

    assert problem(other) == (422, "idempotency_key_reused")
    assert Effect.objects.count() == 1


@each_method
def test_R43_a_changed_field_is_another_request(send: Send, method: str) -> None:
    _, file, more = PARTS

    send(**form(*PARTS, method=method))

    other = send(**form(("title", None, None, b"report"), file, more, method=method))
    assert other.status_code == 422


@each_method
def test_R43_order_of_files_counts(send: Send, method: str) -> None:
    title, file, more = PARTS

    send(**form(title, file, more, method=method))

    assert send(**form(title, more, file, method=method)).status_code == 422


@each_method
@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
def test_R43_the_view_still_reads_its_uploads(send: Send, content: bytes, method: str) -> None:
    parts = (PARTS[0], ("file", "a", "text/plain", content), ("file", "b", "text/plain", b"two"))

    response = send(**form(*parts, method=method))

    assert response.json() == {
        "fields": {"title": ["Report"]},
        "files": {"file": [sha256(content), sha256(b"two")]},
    }


@each_method
def test_R43_a_large_changed_byte(send: Send, method: str) -> None:
    def upload(content: bytes, boundary: str) -> Any:
        part = ("file", "a", "text/plain", content)
        return send(**form(part, boundary=boundary, method=method))

    upload(LARGE, "one")

    assert replayed(upload(LARGE, "two"))
    assert upload(LARGE[:-1] + b"F", "one").status_code == 422
    assert Effect.objects.count() == 1


@each_method
def test_R43_files_are_hashed_in_pieces(
    send: Send, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    read: list[tuple[type, int]] = []
    chunks = UploadedFile.chunks

    def noted(self: Any, chunk_size: int | None = None) -> Any:
        for chunk in chunks(self, chunk_size):
            read.append((type(self), len(chunk)))
            yield chunk

    hashed: list[int] = []
    receive = content._Hashing.receive_data_chunk

    def noted_piece(self: Any, raw_data: bytes, start: int) -> None:
        hashed.append(len(raw_data))
        receive(self, raw_data, start)

    monkeypatch.setattr(UploadedFile, "chunks", noted)
    monkeypatch.setattr(content._Hashing, "receive_data_chunk", noted_piece)

    send(**form(("file", "a", "text/plain", LARGE), method=method))

    assert sum(hashed) == len(LARGE)  # by the guard
    assert sum(size for _, size in read) == len(LARGE)  # by the view
    assert {kind for kind, _ in read} == {TemporaryUploadedFile}
    assert max(hashed + [size for _, size in read]) <= UploadedFile.DEFAULT_CHUNK_SIZE


def test_R43_a_form_that_cannot_be_parsed_leaves_the_key_free(send: Send) -> None:
    for method in ("POST", "PUT"):
        broken = send(b"--", content_type="multipart/form-data; boundary=", method=method)
        assert broken.status_code == 400

    assert send(**form(*PARTS)).status_code == 201


# Bodies that are one file.

RAW = "application/octet-stream"


@each_method
@pytest.mark.parametrize("path", ["/receive/", "/async/"])
@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
def test_R43_a_raw_upload_arrives_and_replays(
    send: Send, content: bytes, path: str, method: str
) -> None:
    arguments = {"path": path, "content_type": RAW, "method": method}

    first, again = send(content, **arguments), send(content, **arguments)
    other = send(content[:-1] + b"?", **arguments)

    assert first.json() == {"sha256": sha256(content), "size": len(content)}
    assert replayed(again)
    assert other.status_code == 422
    assert Effect.objects.count() == 1


def test_R43_the_type_of_a_raw_upload_counts(send: Send) -> None:
    send(LARGE, content_type=RAW)

    assert send(LARGE, content_type="image/png").status_code == 422


def test_R43_large_json_is_read_in_pieces_and_compared_byte_by_byte(send: Send) -> None:
    text = '{"a": "%s", "b": 1}' % ("x" * 3_000_000)

    first = send(text, X_Read="pieces")

    assert first.json()["size"] == len(text)
    assert replayed(send(text, X_Read="pieces"))
    assert send(text.replace("1}", "2}"), X_Read="pieces").status_code == 422


def test_R43_what_is_too_large_for_request_body_is_so_still(send: Send) -> None:
    """Django's own limit stands for a view that asks for all of it: nothing was executed."""
    text = '{"a": "%s"}' % ("x" * 3_000_000)

    assert send(text).status_code in (400, 413)
    assert send({"a": 1}).status_code == 201


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
def test_R43_a_raw_upload_to_FileUploadParser(send: Send, content: bytes, method: str) -> None:
    arguments = {
        "path": "/files/",
        "content_type": "application/pdf",
        "method": method,
        "Content_Disposition": 'attachment; filename="a.pdf"',
    }

    first, again = send(content, **arguments), send(content, **arguments)
    other = send(content[:-1] + b"?", **arguments)
    renamed = send(content, **{**arguments, "Content_Disposition": 'attachment; filename="b.pdf"'})

    assert first.json() == {"sha256": sha256(content), "size": len(content)}
    assert replayed(again)
    assert (other.status_code, renamed.status_code) == (422, 422)
    assert Effect.objects.count() == 1
