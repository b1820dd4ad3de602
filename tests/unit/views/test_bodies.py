"""R43: bodies that somebody has read, above the guard, before it sees them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory
from django.urls import path

from django_idempotency.http import idempotent
from django_idempotency.http.content import body_of
from django_idempotency.policy import HTTPPolicy
from tests.app.models import Effect
from tests.unit.forms.conftest import multipart
from tests.unit.http.api import Api, problem, replayed
from tests.unit.views.conftest import api_for

pytestmark = pytest.mark.django_db(transaction=True)


def signed(view: Callable[..., Any]) -> Callable[..., Any]:
    """Read ``request.body``, as who verifies a signature does."""

    @wraps(view)
    def checked(request: HttpRequest) -> Any:
        assert request.body
        return view(request)

    return checked


@signed
@idempotent
def receive(request: HttpRequest) -> HttpResponse:
    Effect.objects.create(name="received")
    read, kept = request.read(), request.body
    return JsonResponse({"read": _hash(read), "kept": _hash(kept)}, status=201)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


urlpatterns = [path("receive/", receive)]

FILE = ("file", "a.txt", "text/plain", b"content")
OTHER = ("file", "a.txt", "text/plain", b"contenT")


@pytest.fixture
def api(settings: Any, project: None) -> Api:
    settings.ROOT_URLCONF = "tests.unit.views.test_bodies"
    return api_for("wsgi", "/receive/")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_R43_form_whose_body_was_read_before(api: Api, method: str, runs: list[str]) -> None:
    """Compared as any form is; the view gets every byte of it."""

    def send(*parts: Any, boundary: str) -> Any:
        body, content_type = multipart(*parts, boundary=boundary)
        return api(body, content_type=content_type, method=method)

    first, again = send(FILE, boundary="one"), send(FILE, boundary="another")
    other = send(OTHER, boundary="one")

    whole = _hash(multipart(FILE, boundary="one")[0])
    assert first.json() == {"read": whole, "kept": whole}
    assert replayed(again)
    assert problem(other) == (422, "idempotency_key_reused")
    assert len(runs) == 1


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_R43_chunked_form_whose_body_was_read_before(
    rf: RequestFactory, method: str, runs: list[str]
) -> None:
    """As a server hands on what came in chunks: whole, and of a length that nobody has said."""
    view = signed(idempotent(scope="django_idempotency.http.scopes.anyone")(receive))

    def send(part: Any) -> Any:
        body, content_type = multipart(part)
        request = rf.generic(method, "/", body, content_type, headers={"Idempotency-Key": "k"})
        assert request.body
        del request.META["CONTENT_LENGTH"]
        request.META["HTTP_TRANSFER_ENCODING"] = "chunked"
        return view(request)

    first, again, other = send(FILE), send(FILE), send(OTHER)

    assert first.status_code == 201
    assert replayed(again)
    assert problem(other) == (422, "idempotency_key_reused")
    assert len(runs) == 1


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data; boundary=b"])
def test_R43_large_body_of_a_length_that_nobody_has_said(settings: Any, content_type: str) -> None:
    """HTTP/2 has neither Content-Length, if the client leaves it out, nor Transfer-Encoding."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100

    def compared(body: bytes) -> bytes:
        headers = [(b"content-type", content_type.encode())]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        request = ASGIRequest({**scope, "query_string": b""}, io.BytesIO(body))
        found = body_of(request, HTTPPolicy())
        assert request.read() == body
        return found

    one, other = b"1" * 1000, b"2" * 1000
    assert compared(one) == compared(one) != compared(other)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded; charset=latin-1",
        "multipart/form-data; boundary=b; charset=base64",
        "multipart/form-data; boundary=b; charset=idna",
    ],
)
@pytest.mark.parametrize("key", [None, "k"])
def test_R90_form_in_a_charset_that_django_refuses_is_for_the_view_to_refuse(
    rf: RequestFactory, content_type: str, key: str | None
) -> None:
    @idempotent(scope="django_idempotency.http.scopes.anyone")
    def ignores_its_body(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=202)

    body = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n'
    headers = {"Idempotency-Key": key} if key else {}
    request = rf.generic("POST", "/", body, content_type, headers=headers)

    assert ignores_its_body(request).status_code == 202


@pytest.mark.parametrize(
    ("limit", "third"), [(1, "third.txt"), (100, "x" * 2000)], ids=["too many", "long header"]
)
def test_R80_form_that_django_refuses_after_its_first_upload_is_for_the_view_to_refuse(
    rf: RequestFactory, settings: Any, limit: int, third: str
) -> None:
    settings.DATA_UPLOAD_MAX_NUMBER_FILES = limit
    names = ["first.txt", "second.txt", third]
    body, content_type = multipart(*(("file", name, "text/plain", b"a") for name in names))

    @idempotent(scope="django_idempotency.http.scopes.anyone")
    def ignores_its_body(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=202)

    def send(content: bytes) -> Any:
        headers = {"Idempotency-Key": "k"}
        return ignores_its_body(rf.post("/", content, content_type=content_type, headers=headers))

    first, again, other = send(body), send(body), send(body.replace(b"\r\na\r\n", b"\r\nb\r\n"))

    assert (first.status_code, replayed(first)) == (202, False)
    assert (again.status_code, replayed(again)) == (202, True)
    assert other.status_code == 422
