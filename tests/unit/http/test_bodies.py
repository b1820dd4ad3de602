"""Section D, R43, R93: uploads, large bodies, and bodies that are read by nobody or by others."""

from __future__ import annotations

import hashlib
import json
import tempfile
from typing import Any

import pytest
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.test import RequestFactory
from rest_framework import decorators
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, FileUploadParser, MultiPartParser
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.contrib.rest_framework import guard as rest_framework
from django_idempotency.contrib.rest_framework.guard import body_of_request
from django_idempotency.http import content, idempotent
from django_idempotency.policy import HTTPPolicy
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import MISMATCH, BareView, GuardedView

pytestmark = pytest.mark.django_db

# Uploads.

Part = tuple[str, str | None, str | None, bytes]
TITLE: Part = ("title", None, None, b"Report")
FILE: Part = ("file", "a.pdf", "application/pdf", b"%PDF one")
MORE: Part = ("more", "b.txt", "text/plain", b"two")


def multipart(*parts: Part, boundary: str = "boundary") -> dict[str, Any]:
    body = b""
    for name, filename, kind, text in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'
        head += "" if filename is None else f'; filename="{filename}"'
        head += "" if kind is None else f"\r\nContent-Type: {kind}"
        body += head.encode() + b"\r\n\r\n" + text + b"\r\n"
    content_type = f"multipart/form-data; boundary={boundary}"
    return {"body": body + f"--{boundary}--\r\n".encode(), "content_type": content_type}


def raw(body: bytes, filename: str = "a.pdf") -> dict[str, Any]:
    disposition = {"Content-Disposition": f'attachment; filename="{filename}"'}
    return {"body": body, "content_type": "application/pdf", "headers": disposition}


def compared(body: bytes, content_type: str, parser: Any = MultiPartParser, **more: Any) -> bytes:
    """Return what of a body at a view of Django REST framework counts."""
    request = RequestFactory().generic("POST", "/", body, content_type, **more)
    return body_of_request(Request(request, parsers=[parser()]), HTTPPolicy())


def test_R43_a_new_boundary_is_the_same_request():
    one, other = (multipart(TITLE, FILE, MORE, boundary=b) for b in ("one", "other"))

    assert compared(**one) == compared(**other)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((TITLE, ("file", "a.pdf", "application/pdf", b"%PDF onE"), MORE), id="byte"),
        pytest.param((TITLE, ("file", "A.pdf", "application/pdf", b"%PDF one"), MORE), id="file"),
        pytest.param((TITLE, ("file", "a.pdf", "application/x-pdf", b"%PDF one"), MORE), id="type"),
        pytest.param((TITLE, ("other", "a.pdf", "application/pdf", b"%PDF one"), MORE), id="name"),
        pytest.param((TITLE, ("file", None, None, b"%PDF one"), MORE), id="no file"),
        pytest.param((("title", None, None, b"report"), FILE, MORE), id="field"),
        pytest.param((TITLE, MORE, FILE), id="order"),
        pytest.param((TITLE, FILE), id="a file less"),
    ],
)
def test_R43_a_changed_form_is_another_request(parts):
    assert compared(**multipart(*parts)) != compared(**multipart(TITLE, FILE, MORE))


def test_R43_a_changed_raw_upload_is_another_request():
    sent = [raw(b"%PDF one"), raw(b"%PDF one"), raw(b"%PDF onE"), raw(b"%PDF one", "b.pdf")]

    one, same, *changed = (compared(**upload, parser=FileUploadParser) for upload in sent)

    assert one == same
    assert one not in changed


@pytest.mark.parametrize("size", [100, 3_000_000], ids=["small", "large"])
def test_R43_uploads_arrive_whole_and_are_never_held_in_memory(api, mount, size):
    text = b"0123456789" * (size // 10)

    class Receiving(GuardedView):
        def post(self, request: Request) -> Response:
            upload = request.FILES["file"]
            digest = hashlib.sha256(upload.read()).hexdigest()
            on_disk = isinstance(upload, TemporaryUploadedFile)
            was_read = hasattr(request._request, "_body")
            return Response([digest, on_disk, was_read, request.data["title"]], status=201)

    url, sent = mount(Receiving), multipart(TITLE, ("file", "a", "text/plain", text))
    first, again = (api(**sent, path=url) for _ in range(2))

    digest = hashlib.sha256(text).hexdigest()
    assert first.json() == [digest, size > 2_621_440, False, "Report"]
    assert replayed(again)


class RawView(GuardedView):
    """Takes the body for a file."""

    parser_classes = [FileUploadParser]

    def post(self, request: Request) -> Response:
        with request.data["file"] as upload:
            digest = hashlib.sha256(upload.read()).hexdigest()
        return Response({"sha256": digest, "body was read": hasattr(request._request, "_body")})


@pytest.mark.parametrize(("fingerprint", "size"), [("json", 3_000_000), ("raw", 100), (None, 100)])
def test_R43_raw_uploads_arrive_whole_and_are_never_held_in_memory(
    api, policy, mount, fingerprint, size
):
    policy(HTTP={"FINGERPRINT": fingerprint})
    url, text = mount(RawView), b"0123456789" * (size // 10)

    first, again = api(**raw(text), path=url), api(**raw(text), path=url)

    assert first.json() == {"sha256": hashlib.sha256(text).hexdigest(), "body was read": False}
    assert replayed(again)


# Large bodies that are no uploads are compared byte by byte.

LIMIT = 1000


@pytest.fixture
def limit(settings: Any) -> None:
    """From here on a body is large."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = LIMIT


class StreamedJSON(BaseParser):
    """A parser of a project's own, which reads the stream; DRF 3.16's JSONParser does so, too."""

    media_type = "application/json"

    def parse(self, stream: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return json.load(stream)
        except ValueError as error:
            raise ParseError from error


class Large(GuardedView):
    parser_classes = [StreamedJSON]

    def post(self, request: Request) -> Response:
        return Response({"amount": request.data["amount"]}, status=201)


@decorators.api_view(["POST"])
@decorators.parser_classes([StreamedJSON])
@decorators.authentication_classes(GuardedView.authentication_classes)
@decorators.permission_classes(GuardedView.permission_classes)
@idempotent
def below_api_view(request: Request) -> Response:
    return Response({"amount": request.data["amount"]}, status=201)


def large(members: str) -> str:
    """Return a JSON object that is too large for memory, with these members."""
    filling = json.dumps("x" * LIMIT)
    return f'{{"filling": {filling}, {members}}}'


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("view", [Large, below_api_view], ids=["mixin", "below api_view"])
def test_R42_large_json_is_compared_by_its_bytes(api, mount, view):
    url = mount(view)

    first, again = (api(large('"amount": 0.1'), path=url) for _ in range(2))

    assert (first.status_code, first.json()) == (201, {"amount": 0.1})
    assert replayed(again)
    for other in ('"amount":  0.1', '"amount": 0.10000000000000000001', '"a": 1, "amount": 0.1'):
        assert problem(api(large(other), path=url)) == MISMATCH


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(("content_type", "status"), [("application/json", 400), ("text/csv", 415)])
def test_R15_large_body_that_cannot_be_read_leaves_the_key_free(api, mount, content_type, status):
    url = mount(Large)

    assert api("x" * (LIMIT + 1), path=url, content_type=content_type).status_code == status
    assert api(large('"amount": 5'), path=url).status_code == 201


@pytest.mark.usefixtures("limit")
def test_R43_large_body_that_does_not_count_is_not_read(api, mount, policy):
    policy(HTTP={"FINGERPRINT": None})
    streams: list[Any] = []

    class Looking(GuardedView):
        def post(self, request: Request) -> Response:
            streams.append(request._request._stream)
            return Response(status=201)

    url = mount(Looking)
    api(large('"amount": 5'), path=url)

    assert replayed(api(large('"amount": 6'), path=url))
    assert not isinstance(streams[0], tempfile.SpooledTemporaryFile)


# R93: before authentication a body is neither read nor parsed for the guard's sake.


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the guard has made of a body."""
    calls: list[Any] = []
    for module in (content, rest_framework):
        monkeypatch.setattr(module, "body_of", lambda *arguments: calls.append(arguments) or b"")
    return calls


@pytest.mark.parametrize("sent", [{"body": "[0]"}, multipart(TITLE), raw(b"0")])
def test_R93_a_body_of_who_may_not_come_in_costs_nothing(api, mount, made, sent):
    """It is not waited for, either: its sender may take all day."""

    class Refusing(BareView):
        def handle_exception(self, exc: Exception) -> Any:
            made.extend(["read"] * self.request._request._read_started)
            return super().handle_exception(exc)

    assert api(path=mount(Refusing), user=None, **sent).status_code == 401
    assert made == []


@pytest.mark.parametrize(
    ("key", "code"), [("key-1", "scope_missing"), ('"malformed', "idempotency_key_invalid")]
)
def test_R93_a_body_without_a_key_or_a_scope_is_not_read(api, mount, made, key, code):
    """Anybody may come in here, but nobody's key is looked up."""
    members: dict[str, Any] = {"authentication_classes": [], "permission_classes": [AllowAny]}
    url = mount(type("Open", (BareView,), members))

    assert problem(api(path=url, user=None, key=key)) == (400, code)
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


@pytest.mark.parametrize("read", READ)
def test_R93_R48_what_authentication_reads_is_still_compared(api, mount, runs, read):
    """By its bytes: not by what a parser has made of them, and whether it was read or not."""
    url = mount(Signed)
    body, other = '{"amount":\n0.1}', '{"amount":\n0.10000000000000000001}'

    first = api(body, path=url, headers={"X-Read": read})
    again = api(' {"amount": 0.1}', path=url, headers={"X-Read": "nothing"})
    unlike = api(other, path=url, headers={"X-Read": read})

    assert first.status_code == 201
    assert first.json() == {"whole": body, "amount": 0.1}
    assert replayed(again)
    assert problem(unlike) == MISMATCH
    assert len(runs) == 1


def test_R93_the_rest_of_a_body_goes_to_the_view(api, mount):
    class Rest(GuardedView):
        authentication_classes = [Reading]

        def post(self, request: Request) -> Response:
            return Response({"rest": request._request.read().decode()}, status=201)

    response = api("0123456789", path=mount(Rest), headers={"X-Read": "a part"})

    assert response.json() == {"rest": "456789"}
