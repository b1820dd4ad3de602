"""R43, R89: forms with files, and bodies that are one file, however the view reads them."""

from __future__ import annotations

import hashlib

import pytest
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import content, idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.forms import urls
from tests.unit.forms.conftest import multipart
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import api_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

TITLE = ("title", None, None, b"Report")
FILE = ("file", "a.pdf", "application/pdf", b"%PDF one")
MORE = ("more", "b.txt", "text/plain", b"two")
PARTS = (TITLE, FILE, MORE)
#: Above DATA_UPLOAD_MAX_MEMORY_SIZE and FILE_UPLOAD_MAX_MEMORY_SIZE.
LARGE = b"0123456789abcdef" * 250_000
MISMATCH = (422, "idempotency_key_reused")
#: Django parses forms that are POSTed, and no others.
each_method = pytest.mark.parametrize("method", ["POST", "PUT"])


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def form(*parts, boundary="boundary", method="POST"):
    body, content_type = multipart(*parts, boundary=boundary)
    return {"body": body, "content_type": content_type, "method": method}


@pytest.mark.parametrize(("method", "times"), [("POST", 250_000), ("PUT", 250_000), ("PUT", 1)])
def test_R43_a_new_boundary_is_the_same_request_and_another_byte_is_not(send, method, times):
    sent = b"0123456789abcdef" * times

    def upload(boundary, sent):
        file = ("file", "a", "text/plain", sent)
        return send(**form(TITLE, file, MORE, boundary=boundary, method=method))

    first, again, other = upload("one", sent), upload("another", sent), upload("one", sent[:-1])

    assert first.json() == {
        "fields": {"title": ["Report"]},
        "files": {"file": [sha256(sent)], "more": [sha256(b"two")]},
    }
    assert (replayed(again), again.content) == (True, first.content)
    assert problem(other) == MISMATCH
    assert Effect.objects.count() == 1


@each_method
def test_R43_files_are_hashed_in_pieces(send, monkeypatch, method):
    read, hashed = [], []
    chunks, receive = UploadedFile.chunks, content._Hashing.receive_data_chunk

    def noted(self, chunk_size=None):
        for chunk in chunks(self, chunk_size):
            read.append(len(chunk))
            yield chunk
        assert type(self) is TemporaryUploadedFile

    def noted_piece(self, raw_data, start):
        hashed.append(len(raw_data))
        receive(self, raw_data, start)

    monkeypatch.setattr(UploadedFile, "chunks", noted)
    monkeypatch.setattr(content._Hashing, "receive_data_chunk", noted_piece)

    send(**form(("file", "a", "text/plain", LARGE), method=method))

    assert sum(hashed) == sum(read) == len(LARGE)  # by the guard, by the view
    assert max(hashed + read) <= UploadedFile.DEFAULT_CHUNK_SIZE


def test_R43_a_form_that_cannot_be_parsed_leaves_the_key_free(send):
    for method in ("POST", "PUT"):
        broken = send(b"--", content_type="multipart/form-data; boundary=", method=method)
        assert broken.status_code == 400

    assert send(**form(*PARTS)).status_code == 201


# Bodies that are one file.


@pytest.mark.parametrize("path", ["/receive/", "/async/"])
def test_R43_a_raw_upload_arrives_and_replays(send, path):
    arguments = {"path": path, "content_type": "application/octet-stream"}

    first, again = send(LARGE, **arguments), send(LARGE, **arguments)

    assert first.json() == {"sha256": sha256(LARGE), "size": len(LARGE)}
    assert replayed(again)
    assert send(LARGE[:-1] + b"?", **arguments).status_code == 422
    assert send(LARGE, path=path, content_type="image/png").status_code == 422
    assert Effect.objects.count() == 1


def test_R43_large_json_is_read_in_pieces_and_compared_byte_by_byte(send):
    """Django's own limit stands for a view that asks for all of it: nothing was executed."""
    text = '{"a": "%s", "b": 1}' % ("x" * 3_000_000)

    assert send(text, X_Read="pieces").json()["size"] == len(text)
    assert replayed(send(text, X_Read="pieces"))
    assert send(text.replace("1}", "2}"), X_Read="pieces").status_code == 422
    assert send(text, key="key-2").status_code in (400, 413)
    assert send({"a": 1}, key="key-2").status_code == 201


# However the view reads a form, whoever looked for its key.


def handlers(request):
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    return type(request.FILES["file"]).__name__


READ = {
    "body": lambda request: len(request.body),
    "stream": lambda request: len(request.read()),
    "handlers": handlers,
    "parsed": lambda request: [request.POST["title"], request.FILES["file"].read().decode()],
}
own = idempotent(scope=urls.ANYONE)


def guarded(read):
    def view(request):
        Effect.objects.create(name="read")
        return JsonResponse({"read": read(request)}, status=201)

    return csrf_exempt(own(view))


def async_guarded(read):
    async def view(request):
        return JsonResponse({"read": read(request)}, status=201)

    return csrf_exempt(own(view))


views = {name: guarded(read) for name, read in READ.items()}


def either(request):
    """Look at the form first, or at the body as who verifies a signature does, or at nothing."""
    look = request.headers.get("X-Look")
    assert look is None or (request.POST if look == "form" else request.body)
    return views["parsed"](request)


urlpatterns = [
    *urls.urlpatterns,
    *(path(f"{name}/", view) for name, view in views.items()),
    *(path(f"async/{name}/", async_guarded(read)) for name, read in READ.items()),
    path("either/", either),
]


@pytest.mark.parametrize(("stack", "key"), [("wsgi", None), ("wsgi", "k"), ("asgi", "k")])
@pytest.mark.parametrize("name", READ)
def test_R2_R43_the_view_reads_the_form_as_it_likes(name, stack, key):
    sent, kind = multipart(*PARTS)
    view = f"/async/{name}/" if stack == "asgi" else f"/{name}/"
    expected = {"handlers": "TemporaryUploadedFile", "parsed": ["Report", "%PDF one"]}

    response = api_for(stack, view)(sent, key=key, content_type=kind)

    assert response.json() == {"read": expected.get(name, len(sent))}


@pytest.mark.parametrize("name", READ)
def test_R89_key_in_the_form_of_a_csrf_exempt_view(name, monkeypatch):
    """The form is parsed apart once: by who looks for the key, and not for the fingerprint."""
    times, answers, parse = [], [], content._parsed_apart
    monkeypatch.setattr(content, "_parsed_apart", lambda sent: times.append(sent) or parse(sent))
    for boundary in ("one", "another"):
        key = ("idempotency_key", None, None, b"of the form")
        sent, kind = multipart(*PARTS, key, boundary=boundary)
        answers.append(api_for("wsgi", f"/{name}/")(sent, key=None, content_type=kind))

    assert [replayed(answer) for answer in answers] == [False, True]
    assert Effect.objects.count() == 1
    assert IdempotencyRecord.objects.get().key == "of the form"
    assert len(times) == 2


@pytest.mark.parametrize("looked", [("form", None), (None, "form"), ("body", None)], ids=str)
def test_R43_it_is_the_same_request_whoever_has_read_it_before(looked):
    sent, kind = multipart(*PARTS)
    api = api_for("wsgi", "/either/")

    answers = [api(sent, content_type=kind, headers={"X-Look": look}) for look in looked]

    assert [(a.status_code, replayed(a)) for a in answers] == [(201, False), (201, True)]


@each_method
def test_R43_chunked_form_whose_body_was_read_before(rf, method):
    """As a server hands on what came in chunks: whole, and of a length that nobody has said."""

    def send(part):
        sent, kind = multipart(part)
        request = rf.generic(method, "/", sent, kind, headers={"Idempotency-Key": "k"})
        assert request.body
        del request.META["CONTENT_LENGTH"]
        request.META["HTTP_TRANSFER_ENCODING"] = "chunked"
        return views["stream"](request)

    assert [replayed(send(FILE)) for _ in range(2)] == [False, True]
    assert problem(send(MORE)) == MISMATCH
