"""R43, R89: forms with files, and bodies that are one file, however the view reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import content, idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.forms import urls
from tests.unit.forms.conftest import Part, Send, multipart
from tests.unit.forms.urls import ANYONE
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import api_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

PARTS: tuple[Part, ...] = (
    ("title", None, None, b"Report"),
    ("file", "a.pdf", "application/pdf", b"%PDF one"),
    ("more", "b.txt", "text/plain", b"two"),
)
#: Above DATA_UPLOAD_MAX_MEMORY_SIZE and FILE_UPLOAD_MAX_MEMORY_SIZE.
LARGE = b"0123456789abcdef" * 250_000
#: Django parses forms that are POSTed, and no others.
each_method = pytest.mark.parametrize("method", ["POST", "PUT"])


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def form(*parts: Part, boundary: str = "boundary", method: str = "POST") -> dict[str, Any]:
    body, content_type = multipart(*parts, boundary=boundary)
    return {"body": body, "content_type": content_type, "method": method}


@each_method
@pytest.mark.parametrize("size", [b"small", LARGE], ids=["small", "large"])
def test_R43_a_new_boundary_is_the_same_request(send: Send, method: str, size: bytes) -> None:
    parts = (PARTS[0], ("file", "a", "text/plain", size), PARTS[2])

    first = send(**form(*parts, boundary="one", method=method))
    again = send(**form(*parts, boundary="another", method=method))
    changed = ("file", "a", "text/plain", size[:-1] + b"?")
    other = send(**form(PARTS[0], changed, PARTS[2], boundary="one", method=method))

    assert first.json() == {
        "fields": {"title": ["Report"]},
        "files": {"file": [sha256(size)], "more": [sha256(b"two")]},
    }
    assert (replayed(again), again.content) == (True, first.content)
    assert problem(other) == (422, "idempotency_key_reused")
    assert Effect.objects.count() == 1


TITLE, FILE, MORE = PARTS


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param([TITLE, ("file", "A.pdf", *FILE[2:]), MORE], id="file name"),
        pytest.param([TITLE, ("file", "a.pdf", "image/png", FILE[3]), MORE], id="type"),
        pytest.param([TITLE, ("other", *FILE[1:]), MORE], id="name"),
        pytest.param([TITLE, ("file", None, None, FILE[3]), MORE], id="no file"),
        pytest.param([("title", None, None, b"report"), FILE, MORE], id="field"),
        pytest.param([TITLE, MORE, FILE], id="order of files"),
    ],
)
def test_R43_a_changed_part_is_another_request(send: Send, changed: list[Part]) -> None:
    send(**form(*PARTS))

    assert problem(send(**form(*changed))) == (422, "idempotency_key_reused")
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


@pytest.mark.parametrize("path", ["/receive/", "/async/"])
@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
def test_R43_a_raw_upload_arrives_and_replays(send: Send, content: bytes, path: str) -> None:
    arguments = {"path": path, "content_type": RAW}

    first, again = send(content, **arguments), send(content, **arguments)
    other = send(content[:-1] + b"?", **arguments)

    assert first.json() == {"sha256": sha256(content), "size": len(content)}
    assert replayed(again)
    assert other.status_code == 422
    assert send(content, path=path, content_type="image/png").status_code == 422
    assert Effect.objects.count() == 1


def test_R43_large_json_is_read_in_pieces_and_compared_byte_by_byte(send: Send) -> None:
    """Django's own limit stands for a view that asks for all of it: nothing was executed."""
    text = '{"a": "%s", "b": 1}' % ("x" * 3_000_000)

    first = send(text, X_Read="pieces")

    assert first.json()["size"] == len(text)
    assert replayed(send(text, X_Read="pieces"))
    assert send(text.replace("1}", "2}"), X_Read="pieces").status_code == 422
    assert send(text, key="key-2").status_code in (400, 413)
    assert send({"a": 1}, key="key-2").status_code == 201


# However the view reads a form, whoever looked for its key.


def body(request: HttpRequest) -> Any:
    return len(request.body)


def stream(request: HttpRequest) -> Any:
    return len(request.read())


def handlers(request: HttpRequest) -> Any:
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    return type(request.FILES["file"]).__name__


def parsed(request: Any) -> Any:
    return [request.POST["title"], request.FILES["file"].read().decode()]


READ: dict[str, Callable[[HttpRequest], Any]] = {
    function.__name__: function for function in (body, stream, handlers, parsed)
}


def guarded(read: Callable[[HttpRequest], Any]) -> Any:
    @csrf_exempt
    @idempotent(scope=ANYONE)
    def view(request: HttpRequest) -> HttpResponse:
        Effect.objects.create(name="read")
        return JsonResponse({"read": read(request)}, status=201)

    return view


def async_guarded(read: Callable[[HttpRequest], Any]) -> Any:
    @csrf_exempt
    @idempotent(scope=ANYONE)
    async def view(request: HttpRequest) -> HttpResponse:
        return JsonResponse({"read": read(request)}, status=201)

    return view


def either(request: HttpRequest) -> Any:
    """Look at the form first, or at the body as who verifies a signature does, or at nothing."""
    match request.headers.get("X-Look"):
        case "form":
            assert request.POST
        case "body":
            assert request.body
    return views["parsed"](request)


views = {name: guarded(read) for name, read in READ.items()}
urlpatterns = [
    *urls.urlpatterns,
    *(path(f"{name}/", view) for name, view in views.items()),
    *(path(f"async/{name}/", async_guarded(read)) for name, read in READ.items()),
    path("either/", either),
]
KEY: Part = ("idempotency_key", None, None, b"of the form")


@pytest.mark.parametrize(("stack", "key"), [("wsgi", None), ("wsgi", "k"), ("asgi", "k")])
@pytest.mark.parametrize("name", READ)
def test_R2_R43_the_view_reads_the_form_as_it_likes(name: str, stack: str, key: str | None) -> None:
    sent, content_type = multipart(*PARTS)
    view = f"/async/{name}/" if stack == "asgi" else f"/{name}/"

    response = api_for(stack)(sent, path=view, key=key, content_type=content_type)

    expected = {"handlers": "TemporaryUploadedFile", "parsed": ["Report", "%PDF one"]}
    assert response.json() == {"read": expected.get(name, len(sent))}


@pytest.mark.parametrize("name", READ)
def test_R89_key_in_the_form_of_a_csrf_exempt_view(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form is parsed apart once: by who looks for the key, and not for the fingerprint."""
    times: list[HttpRequest] = []
    parse = content._parsed_apart
    monkeypatch.setattr(content, "_parsed_apart", lambda sent: (times.append(sent), parse(sent))[1])
    answers = []
    for boundary in ("one", "another"):
        sent, content_type = multipart(*PARTS, KEY, boundary=boundary)
        answers.append(api_for("wsgi")(sent, path=f"/{name}/", key=None, content_type=content_type))

    assert [replayed(answer) for answer in answers] == [False, True]
    assert Effect.objects.count() == 1
    assert IdempotencyRecord.objects.get().key == "of the form"
    assert len(times) == 2


@pytest.mark.parametrize(
    "looked", [("form", None), (None, "form"), ("body", None), (None, "body")], ids=str
)
def test_R43_it_is_the_same_request_whoever_has_read_it_before(looked: Any) -> None:
    sent, content_type = multipart(*PARTS)

    answers = [
        api_for("wsgi")(sent, path="/either/", content_type=content_type, headers={"X-Look": look})
        for look in looked
    ]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert replayed(answers[1])


@each_method
def test_R43_chunked_form_whose_body_was_read_before(rf: RequestFactory, method: str) -> None:
    """As a server hands on what came in chunks: whole, and of a length that nobody has said."""

    def send(part: Any) -> Any:
        sent, content_type = multipart(part)
        headers = {"Idempotency-Key": "k"}
        request: Any = rf.generic(method, "/", sent, content_type, headers=headers)
        assert request.body
        del request.META["CONTENT_LENGTH"]
        request.META["HTTP_TRANSFER_ENCODING"] = "chunked"
        return views["stream"](request)

    first, again, other = (send(part) for part in (PARTS[1], PARTS[1], PARTS[2]))

    assert first.status_code == 201
    assert replayed(again)
    assert problem(other) == (422, "idempotency_key_reused")
