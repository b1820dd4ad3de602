"""R43: bodies that somebody has read, above the guard, before it sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory
from django.urls import path

from django_idempotency.http import idempotent
from tests.app.models import Effect
from tests.forms.conftest import multipart
from tests.http.api import Api, problem, replayed
from tests.views.conftest import api_for

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
    settings.ROOT_URLCONF = "tests.views.test_bodies"
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
