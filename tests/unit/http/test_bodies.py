"""Section D, R43, R93: uploads, large bodies, and bodies that are read by nobody or by others."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.exceptions import BadRequest, RequestDataTooBig
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, FileUploadParser, MultiPartParser
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import handler as rest_framework
from django_idempotency.contrib.rest_framework.handler import RestHandler
from django_idempotency.http import content, idempotent, scopes, spool
from django_idempotency.policy import HTTPPolicy
from django_idempotency.testing.http_contract import multipart
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import MISMATCH, BareView, GuardedView

pytestmark = pytest.mark.django_db

# Uploads.

TITLE, FILE = ("title", "Report"), ("file", "a.pdf", "application/pdf", b"%PDF one")
MORE = ("more", "b.txt", "text/plain", b"two")


def form(*files: Any, fields: Any = (TITLE,), boundary: str = "boundary") -> dict[str, Any]:
    body, content_type = multipart(fields, files, boundary)
    return {"body": body, "content_type": content_type}


def raw(body: bytes) -> dict[str, Any]:
    disposition = {"Content-Disposition": 'attachment; filename="a.pdf"'}
    return {"body": body, "content_type": "application/pdf", "headers": disposition}


def body_of(request: Request, http: HTTPPolicy) -> bytes:
    view = APIView()
    return RestHandler(view.options, request, (), {}, view).body(http)


def compared(body: bytes, content_type: str) -> bytes:
    """Return what of a body at a view of Django REST framework counts."""
    request = RequestFactory().generic("POST", "/", body, content_type)
    return body_of(Request(request, parsers=[MultiPartParser()]), HTTPPolicy())


def test_R43_a_changed_form_is_another_request_and_a_new_boundary_is_not():
    name, filename, kind, content = FILE
    changed = {
        "byte": form((name, filename, kind, b"%PDF onE"), MORE),
        "file": form((name, "A.pdf", kind, content), MORE),
        "type": form((name, filename, "application/x-pdf", content), MORE),
        "name": form(("other", filename, kind, content), MORE),
        "no file": form(MORE, fields=(TITLE, ("file", "%PDF one"))),
        "field": form(FILE, MORE, fields=(("title", "report"),)),
        "order": form(MORE, FILE),
        "a file less": form(FILE),
    }
    first = compared(**form(FILE, MORE))

    assert compared(**form(FILE, MORE, boundary="other")) == first
    assert [what for what, other in changed.items() if compared(**other) == first] == []


LARGE = b"0123456789" * 300_000
UPLOADS = {MultiPartParser: form(("file", "a", "text/plain", LARGE)), FileUploadParser: raw(LARGE)}


@pytest.mark.parametrize("parser", UPLOADS)
def test_R43_uploads_arrive_whole_and_are_never_held_in_memory(api, mount, parser):
    class Receiving(GuardedView):
        parser_classes = [parser]

        def post(self, request: Request) -> Response:
            upload = request.data["file"]
            assert isinstance(upload, TemporaryUploadedFile)
            assert not hasattr(request._request, "_body")
            return Response(upload.read() == LARGE)

    api.path = mount(Receiving)
    first, again = (api(**UPLOADS[parser]) for _ in range(2))
    assert first.json() is True
    assert replayed(again)


def test_R43_a_body_that_does_not_count_is_not_read():
    request = Request(RequestFactory().post("/", LARGE, "text/plain"))
    assert body_of(request, HTTPPolicy(fingerprint=None)) == b""
    assert not request._request._read_started  # type: ignore[attr-defined]


# Large bodies that are no uploads are compared byte by byte.


class StreamedJSON(BaseParser):
    """A parser of a project's own, which reads the stream; DRF 3.16's JSONParser does so, too."""

    media_type = "application/json"

    def parse(self, stream: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return json.load(stream)
        except ValueError as error:
            raise ParseError from error


def test_R42_large_json_is_compared_by_its_bytes(api, mount, settings):
    class Large(GuardedView):
        parser_classes = [StreamedJSON]

        def post(self, request: Request) -> Response:
            return Response({"amount": request.data["amount"]}, status=201)

    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    api.path = mount(Large)
    assert api("x" * 11).status_code == 400  # and the key is free (R15)
    first, again = (api('{"amount": 0.1}') for _ in range(2))
    assert (first.status_code, first.json()) == (201, {"amount": 0.1})
    assert replayed(again)
    assert problem(api('{"amount":  0.1}')) == MISMATCH


# R93: before authentication a body is neither read nor parsed for the guard's sake.


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the guard has made of a body."""
    calls: list[Any] = []
    for module in (content, rest_framework):
        monkeypatch.setattr(module, "body_of", lambda *arguments: calls.append(arguments) or b"")
    return calls


def test_R93_a_body_of_who_may_not_come_in_costs_nothing(api, mount, made):
    """It is not waited for, either: its sender may take all day."""

    class Refusing(BareView):
        def handle_exception(self, exc: Exception) -> Any:
            made.extend(["read"] * self.request._request._read_started)
            return super().handle_exception(exc)

    api.path = mount(Refusing)
    for sent in ({"body": "[0]"}, form(), raw(b"0")):
        assert api(user=None, **sent).status_code == 401
    assert made == []


def test_R93_a_body_without_a_key_or_a_scope_is_not_read(api, mount, made):
    """Anybody may come in here, but nobody's key is looked up."""
    members: dict[str, Any] = {"authentication_classes": [], "permission_classes": [AllowAny]}
    api.path = mount(type("Open", (BareView,), members))
    assert problem(api(user=None)) == (400, "scope_missing")
    assert problem(api(user=None, key='"')) == (400, "idempotency_key_invalid")
    assert made == []


# Who authenticates may read the body, too.

READ: dict[str, Any] = {
    "nothing": lambda request: None,
    "data": lambda request: request.data,
    "POST": lambda request: request._request.POST,
    "DRF's POST": lambda request: request.POST,
    "body": lambda request: request.body,
    "stream": lambda request: request._request.read(),
    "a part": lambda request: request._request.read(4),
    "a line": lambda request: request._request.readline(),
}


class Reading(HeaderAuthentication):
    """Reads of the body what the client says, as who verifies a signature does."""

    def authenticate(self, request: Request) -> Any:
        READ[request.headers["X-Read"]](request)
        return super().authenticate(request)


class Signed(GuardedView):
    authentication_classes = [Reading]
    parser_classes = [StreamedJSON]

    def post(self, request: Request) -> Response:
        Effect.objects.create(name="signed")
        whole = bytes(request._request.body)
        return Response({"whole": whole.decode(), "amount": request.data["amount"]}, status=201)


def test_R93_R48_what_authentication_reads_is_still_compared(api, mount, runs):
    """By its bytes: not by what a parser has made of them, and whether it was read or not."""
    api.path = mount(Signed)
    body, other = '{"amount":\n0.1}', '{"amount":\n0.10000000000000000001}'
    for read in READ:
        first = api(body, headers={"X-Read": read}, key=read)
        again = api(' {"amount": 0.1}', headers={"X-Read": "nothing"}, key=read)
        unlike = api(other, headers={"X-Read": read}, key=read)
        assert first.status_code == 201, read
        assert first.json() == {"whole": body, "amount": 0.1}, read
        assert replayed(again), read
        assert problem(unlike) == MISMATCH, read
    assert len(runs) == len(READ)


@pytest.mark.parametrize("view", ["function", "REST framework"])
@pytest.mark.parametrize(
    "sent",
    [{"body": '{"amount": 1250}', "content_type": "application/json"}, form(FILE)],
    ids=["json", "multipart"],
)
def test_R93_R40_a_body_that_breaks_off_is_refused_and_its_key_stays_free(sent, view, runs):
    """Servers of WSGI hand on what they have of it: less, maybe, than the client asks for."""

    class Open(GuardedView):
        authentication_classes, permission_classes = (), ()
        idempotency_scope = staticmethod(scopes.anyone)

        def post(self, request: Request) -> Response:
            runs.append(1)
            return Response({}, status=201)

    def function(request: HttpRequest) -> HttpResponse:
        runs.append(1)
        return HttpResponse(status=201)

    guarded = idempotent(scope=scopes.anyone)(function) if view == "function" else Open.as_view()
    body = sent["body"].encode() if isinstance(sent["body"], str) else sent["body"]

    def send(part: bytes) -> Any:
        length = {"CONTENT_LENGTH": str(len(body)), "HTTP_IDEMPOTENCY_KEY": "k"}
        request = RequestFactory().generic("POST", "/", part, sent["content_type"], **length)
        request._stream = io.BytesIO(part)  # that of the factory minds an early end
        return guarded(request)

    with pytest.raises(BadRequest, match="shorter than its Content-Length"):
        send(body[:-3])
    assert (send(body).status_code, len(runs)) == (201, 1)


def test_R93_the_rest_of_a_body_goes_to_the_view(api, mount):
    class Rest(GuardedView):
        authentication_classes = [Reading]

        def post(self, request: Request) -> Response:
            return Response({"rest": request._request.read().decode()}, status=201)

    response = api("0123456789", path=mount(Rest), headers={"X-Read": "a part"})
    assert response.json() == {"rest": "456789"}


@pytest.mark.parametrize(
    "watch", [spool.tee, lambda request: spool.whole_body(request).__enter__()]
)
def test_R93_a_body_that_is_watched_has_the_limit_of_django(settings, watch):
    """In chunks, with no length declared. The first patches of Django 5.2 have no limit there."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}

    def read(request: HttpRequest) -> bytes | type[Exception]:
        try:
            return request.body
        except RequestDataTooBig as error:
            return type(error)

    for size in (10, 11):
        alone, watched = (ASGIRequest(scope, io.BytesIO(b"x" * size)) for _ in range(2))
        watch(watched)
        assert watched._stream.seekable()  # Django 6.1 asks, and has no other way to measure it
        assert read(watched) == read(alone)
