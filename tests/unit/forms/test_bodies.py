"""R43 to R48, R80, R89, R93: bodies of plain views, compared and left as they came."""

from __future__ import annotations

import hashlib
import io
import json

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.core.handlers.asgi import ASGIRequest
from django.http import JsonResponse
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.fingerprint import canonical_json
from django_idempotency.http import content, idempotent
from django_idempotency.http.content import body_of
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy
from tests.app.models import Effect
from tests.unit.forms import urls
from tests.unit.forms.conftest import FORM, multipart
from tests.unit.forms.urls import ANYONE
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import api_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

FILE = ("file", "a.pdf", "application/pdf", b"%PDF one")
PARTS = (("title", None, None, b"Report"), FILE, ("more", "b.txt", "text/plain", b"two"))
#: Above DATA_UPLOAD_MAX_MEMORY_SIZE and FILE_UPLOAD_MAX_MEMORY_SIZE.
LARGE = b"0123456789abcdef" * 180_000
PARSED = multipart(*((name, None, None, b"12") for name in "abc"))
MISMATCH = (422, "idempotency_key_reused")


def sha256(content):
    return hashlib.sha256(content).hexdigest()


# Forms and uploads are parsed as they come, in pieces.


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_R43_a_form_is_hashed_in_pieces_arrives_and_a_new_boundary_is_the_same(monkeypatch, method):
    """Django parses forms that are POSTed, and no others."""
    send, read, hashed = api_for("wsgi", "/receive/"), [], []
    chunks, receive = UploadedFile.chunks, content._Hashing.receive_data_chunk

    def noted(self, chunk_size=None):
        for chunk in chunks(self, chunk_size):
            read.append(len(chunk))
            yield chunk

    def noted_piece(self, raw_data, start):
        hashed.append(len(raw_data))
        receive(self, raw_data, start)

    def upload(boundary, sent):
        parts = (PARTS[0], ("file", "a", "text/plain", sent), PARTS[2])
        body, kind = multipart(*parts, boundary=boundary)
        return send(body, content_type=kind, method=method)

    monkeypatch.setattr(UploadedFile, "chunks", noted)
    monkeypatch.setattr(content._Hashing, "receive_data_chunk", noted_piece)
    first = upload("one", LARGE)

    assert sum(hashed) == sum(read) == len(LARGE) + len(b"two")  # by the guard, by the view
    assert max(hashed + read) <= UploadedFile.DEFAULT_CHUNK_SIZE
    assert first.json() == {
        "fields": {"title": ["Report"]},
        "files": {"file": [sha256(LARGE)], "more": [sha256(b"two")]},
    }
    again = upload("another", LARGE)
    assert (replayed(again), again.content) == (True, first.content)
    assert problem(upload("one", LARGE[:-1])) == MISMATCH
    assert Effect.objects.count() == 1


def test_R43_a_raw_upload_arrives_at_a_coroutine_and_replays():
    send, raw = api_for("wsgi", "/async/"), {"content_type": "application/octet-stream"}

    first, again = send(LARGE, **raw), send(LARGE, **raw)

    assert first.json() == {"sha256": sha256(LARGE), "size": len(LARGE)}
    assert replayed(again)
    assert send(LARGE[:-1] + b"?", **raw).status_code == 422
    assert send(LARGE, content_type="image/png").status_code == 422
    assert Effect.objects.count() == 1


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=b"])
def test_R43_large_body_of_a_length_that_nobody_has_said(settings, kind):
    """HTTP/2 has neither Content-Length, if the client leaves it out, nor Transfer-Encoding."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b""}
    scope["headers"] = [(b"content-type", kind.encode())]

    def compared(body):
        request = ASGIRequest(scope, io.BytesIO(body))
        found = body_of(request, HTTPPolicy())
        assert request.read() == body
        return found

    one, other = b"1" * 1000, b"2" * 1000
    assert compared(one) == compared(one) != compared(other)


# However a view reads a body, whoever looked at it before.


def handlers(request):
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    return isinstance(request.FILES["file"], TemporaryUploadedFile)


READ = {
    "nothing": lambda request: None,
    "pieces": lambda request: urls.digest(urls.pieces(request))["size"],
    "body": lambda request: len(request.body),
    "stream": lambda request: len(request.read()),
    "wsgi.input": lambda request: len(request.META["wsgi.input"].read()),
    "form": lambda request: len(request.POST["a"]),
    "handlers": handlers,
    "parsed": lambda request: [request.POST["title"], request.FILES["file"].read().decode()],
}


def reads(request):
    return JsonResponse({"read": READ[request.headers["X-Read"]](request)}, status=201)


async def areads(request):
    return await sync_to_async(reads)(request)


guarded = csrf_exempt(idempotent(scope=ANYONE)(reads))


def either(request):
    """Look at the form first, or at the body as who verifies a signature does, or at nothing."""
    look = request.headers.get("X-Look")
    assert look is None or (request.POST if look == "form" else request.body)
    return guarded(request)


urlpatterns = [
    *urls.urlpatterns,
    path("either/", either),
    path("bare/reads/", csrf_exempt(reads)),
    path("bare/areads/", csrf_exempt(areads)),
    path("guarded/reads/", guarded),
    path("guarded/areads/", csrf_exempt(idempotent(scope=ANYONE)(areads))),
]


async def in_chunks(path, body, **headers):
    """Send a form in chunks over ASGI, as a server does; return status and body of the answer."""
    given = {"content-type": FORM, "host": "testserver", **headers}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
    }
    communicator = ApplicationCommunicator(get_asgi_application(), scope)
    for start in range(0, len(body), 1000):
        more = {"type": "http.request", "body": body[start : start + 1000], "more_body": True}
        await communicator.send_input(more)
    await communicator.send_input({"type": "http.request", "body": b"", "more_body": False})
    began, rest = [await communicator.receive_output(60) for _ in range(2)]
    await communicator.wait(60)
    return began["status"], rest["body"]


@pytest.mark.parametrize("path", ["reads/", "areads/"])
@pytest.mark.parametrize("how", ["pieces", "form", "body"])
@pytest.mark.parametrize("size", [500, 5000])
def test_R90_R93_a_form_in_chunks_without_a_key_is_to_the_view_what_it_is_unguarded(
    settings, path, how, size
):
    """One that is too large for Django's parser is read in pieces, or refused."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 2000
    body = b"a=" + b"1" * size

    bare, guarded = (
        async_to_sync(in_chunks)(where + path, body, **{"X-Read": how})
        for where in ("/bare/", "/guarded/")
    )

    assert guarded[0] == bare[0]
    assert (bare[0] == 201) == (size == 500 or how == "pieces")
    if bare[0] == 201:
        assert guarded[1] == bare[1] == json.dumps({"read": size + 2 * (how != "form")}).encode()


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize(("kind", "size"), [(FORM, 10), ("application/json", 10), ("a/b", 5000)])
def test_R90_a_view_that_reads_wsgi_input_itself_finds_the_body_there(settings, kind, size, key):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 2000
    headers, body = {"X-Read": "wsgi.input"}, b"a=" + b"1" * size

    said = [
        api_for("wsgi", where)(body, key=key, content_type=kind, headers=headers).json()
        for where in ("/bare/reads/", "/guarded/reads/")
    ]

    assert said == [{"read": size + 2}] * 2


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("kind", [FORM, "application/json", PARSED[1]])
@pytest.mark.parametrize("how", ["nothing", "pieces", "body"])
def test_R80_R90_content_length_that_is_no_number_is_to_the_view_what_it_is_unguarded(
    rf, kind, key, how
):
    """Servers refuse it. To Django the body is empty; `request.body` is a ValueError up to 6.0."""
    client = Client(raise_request_exception=False)
    given = {"CONTENT_LENGTH": "many", "HTTP_X_READ": how, "CONTENT_TYPE": kind}
    given |= {"HTTP_IDEMPOTENCY_KEY": key} if key else {}

    answers = [
        client.request(
            PATH_INFO=where + "reads/",
            REQUEST_METHOD="POST",
            **{"wsgi.input": io.BytesIO(b"a=1"), **given},
        )
        for where in ("/bare/", "/guarded/")
    ]

    bare, guarded = answers
    assert guarded.status_code == bare.status_code
    assert bare.status_code == 201 or how == "body"
    if bare.status_code == 201:
        assert guarded.content == bare.content


def test_R46_bytes_of_a_form_that_are_no_utf8():
    """Which fields make another request: tests/unit/http/test_fingerprint.py."""
    send = api_for("wsgi", "/receive/")
    first, same, other = (send(body, content_type=FORM) for body in ("a=%ff", "a=%FF", "a=%fe"))

    assert (first.status_code, replayed(same), other.status_code) == (201, True, 422)


# fingerprint_exclude.

SENT = (
    '{"amount": 10, "trace": {"id": 1}, "client": {"name": "app", "sent_at": "10:00"}, '
    '"items": [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}, 3], '
    '"#seen": 1, "meta": {"#": 1, "kept": 1}}'
)
EXCLUDED = ["client.sent_at", "items.note", "#seen", "meta.#", "trace"]
SAME = {
    "path": ('"10:00"', '"11:00"'),
    "left out": (', "sent_at": "10:00"', ""),
    "whole member": ('{"id": 1}', "null"),
    "in an array": ('"b"', '"c"'),
    "name that starts with #": ('"#seen": 1', '"#seen": 2'),
    "name that is #": ('"#": 1', '"#": []'),
}
OTHER = {
    "another member": ("10,", "11,"),
    "beside the path": ('"app"', '"web"'),
    "beside it in an array": ('"id": 2', '"id": 5'),
    "a number in the array": ("3]", "4]"),
    "beside #": ('"kept": 1', '"kept": 2'),
    "same name elsewhere": ('{"amount"', '{"sent_at": "11:00", "amount"'),
    "same name above": ('{"amount"', '{"note": "c", "amount"'),
}


@pytest.mark.parametrize("form", ["%s", "[%s, {}]"], ids=["message", "array of messages"])
def test_R45_fingerprint_exclude(form):
    def counted(old="", new=""):
        return canonical_json((form % SENT.replace(old, new)).encode(), EXCLUDED)

    assert [name for name, change in SAME.items() if counted(*change) != counted()] == []
    assert [name for name, change in OTHER.items() if counted(*change) == counted()] == []


# Bodies that Django itself would refuse: the view decides, for it need not parse them.


def files(*names):
    return multipart(*(("file", name, "text/plain", b"12") for name in names))


FIELDS = (b"a=12&b=12&c=12", FORM)
#: The limit, and body and type of a form.
REFUSED = {
    "charset": ({}, (FIELDS[0], f"{FORM}; charset=latin-1")),
    "charset of parts": ({}, (PARSED[0], f"{PARSED[1]}; charset=base64")),
    "third file": ({"NUMBER_FILES": 2}, files("first", "second", "third")),
    "long header of a file": ({}, files("first", "second", "x" * 2000)),
    "fields": ({"NUMBER_FIELDS": 2}, FIELDS),
    "parts": ({"NUMBER_FIELDS": 2}, PARSED),
    "size of fields": ({"MEMORY_SIZE": 2}, FIELDS),
    "size of parts": ({"MEMORY_SIZE": 2}, PARSED),
}


@pytest.mark.parametrize("form", REFUSED)
def test_R80_R90_R93_a_form_that_django_refuses_reaches_a_view_that_does_not_parse_it(
    rf, settings, form
):
    limits, (body, kind) = REFUSED[form]
    for name, limit in limits.items():
        setattr(settings, f"DATA_UPLOAD_MAX_{name}", limit)

    def send(content, **headers):
        given = {"X-Read": "stream", **headers}
        return guarded(rf.generic("POST", "/", content, kind, headers=given))

    key = {"Idempotency-Key": "k"}
    for headers in ({}, key):
        first, again = (send(body, **headers) for _ in range(2))
        assert first.content == json.dumps({"read": len(body)}).encode()
        assert replayed(again) == bool(headers)
    assert send(body.replace(b"12", b"13"), **key).status_code == 422


@pytest.mark.parametrize(
    ("view", "read"),
    [
        *(("/guarded/reads/", read) for read in ("body", "stream", "handlers", "parsed")),
        ("/guarded/areads/", "parsed"),
    ],
)
def test_R2_R43_R89_the_view_reads_the_form_as_it_likes(view, read, monkeypatch):
    """It is parsed apart once: by who looks for the key, or else for the fingerprint."""
    times, parse = [], content._parsed_apart
    monkeypatch.setattr(content, "_parsed_apart", lambda sent: times.append(sent) or parse(sent))
    api = api_for("asgi" if "areads" in view else "wsgi", view)
    expected = {"handlers": True, "parsed": ["Report", "%PDF one"]}

    def send(key, *more):
        sent, kind = multipart(*PARTS, *more)
        response = api(sent, key=key, content_type=kind, headers={"X-Read": read})
        assert response.json() == {"read": expected.get(read, len(sent))}
        return replayed(response)

    in_it = ("idempotency_key", None, None, b"of the form")
    found = [send(None), send("k"), send("k"), send(None, in_it), send(None, in_it)]

    assert found == [False, False, True, False, True]
    assert IdempotencyRecord.objects.filter(key="of the form").exists()
    assert len(times) == 5


@pytest.mark.parametrize("looked", [("form", None), (None, "form"), ("body", None)], ids=str)
def test_R43_it_is_the_same_request_whoever_has_read_it_before(looked):
    sent, kind = multipart(*PARTS)
    api = api_for("wsgi", "/either/")
    headers = [{"X-Read": "parsed", **({"X-Look": look} if look else {})} for look in looked]

    answers = [api(sent, content_type=kind, headers=given) for given in headers]

    assert [(a.status_code, replayed(a)) for a in answers] == [(201, False), (201, True)]


def test_R43_chunked_form_whose_body_was_read_before(rf):
    """As a server hands on what came in chunks: whole, and of a length that nobody has said."""

    def send(part):
        sent, kind = multipart(part)
        headers = {"Idempotency-Key": "k", "X-Read": "stream"}
        request = rf.post("/", sent, content_type=kind, headers=headers)
        assert request.body
        del request.META["CONTENT_LENGTH"]
        request.META["HTTP_TRANSFER_ENCODING"] = "chunked"
        return guarded(request)

    assert [replayed(send(FILE)) for _ in range(2)] == [False, True]
    assert problem(send(PARTS[2])) == MISMATCH
