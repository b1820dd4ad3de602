"""R93: before authentication a body is neither read nor parsed for the guard's sake."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib import rest_framework
from django_idempotency.http import content
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount
from tests.unit.http.test_d_large import StreamedJSON
from tests.unit.http.views import BareView, GuardedView

pytestmark = pytest.mark.django_db

MEGABYTE = 1024 * 1024
SIZE = int(2.5 * MEGABYTE)
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
#: What costs most for each byte of it.
BODIES = {
    "json": (b"[" + b"0," * (SIZE // 2 - 2) + b"0]", "application/json"),
    "form": (b"a&" * (SIZE // 2 - 1) + b"a", FORM),
    "multipart": (
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * (SIZE // 54),
        MULTIPART,
    ),
    "raw": (b"0" * SIZE, "application/octet-stream"),
    "large": (b"0" * (SIZE + MEGABYTE), "application/json"),
}


class Unguarded(APIView):
    """The views below without the guard."""

    authentication_classes = [HeaderAuthentication]
    permission_classes = GuardedView.permission_classes

    def post(self, request: Request) -> Response:
        return Response(status=201)


def peak(api: Api, **arguments: Any) -> int:
    """Return how much memory a request that is refused needs, in bytes."""
    assert api(user=None, **arguments).status_code == 401
    gc.collect()
    tracemalloc.start()
    try:
        assert api(user=None, **arguments).status_code == 401
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", BODIES)
def test_R93_a_body_of_who_may_not_come_in_costs_nothing(
    api: Api, mount: Mount, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made: list[Any] = []
    for module in (content, rest_framework):
        monkeypatch.setattr(module, "body_of", lambda *arguments: made.append(arguments) or b"")
    body, content_type = BODIES[kind]
    arguments = {"body": body, "content_type": content_type}

    unguarded = peak(api, path=mount(Unguarded), **arguments)
    guarded = peak(api, path=mount(BareView), **arguments)

    assert guarded - unguarded < 8 * MEGABYTE
    assert made == []


@pytest.mark.parametrize("kind", BODIES)
def test_R93_a_body_of_who_may_not_come_in_is_not_waited_for(
    api: Api, mount: Mount, kind: str
) -> None:
    """Its sender may take all day."""
    read: list[bool] = []

    class Refusing(BareView):
        def handle_exception(self, exc: Exception) -> Any:
            read.append(self.request._request._read_started)
            return super().handle_exception(exc)

    body, content_type = BODIES[kind]

    assert api(body, content_type=content_type, path=mount(Refusing), user=None).status_code == 401
    assert read == [False]


def test_R93_a_body_without_a_scope_is_not_read(
    api: Api, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may come in here, but nobody's key is looked up."""
    made: list[Any] = []
    monkeypatch.setattr(rest_framework, "body_of", lambda *arguments: made.append(arguments) or b"")

    class Open(BareView):
        authentication_classes = []
        permission_classes = [AllowAny]

    url = mount(Open)

    assert problem(api(path=url, user=None)) == (400, "scope_missing")
    assert problem(api(path=url, key='"malformed')) == (400, "idempotency_key_invalid")
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
def test_R93_R48_what_authentication_reads_is_still_compared(
    api: Api, mount: Mount, runs: list[str], read: str
) -> None:
    """By its bytes: not by what a parser has made of them, and whether it was read or not."""
    url = mount(Signed)
    body, other = '{"amount":\n0.1}', '{"amount":\n0.10000000000000000001}'

    first = api(body, path=url, headers={"X-Read": read})
    again = api(' {"amount": 0.1}', path=url, headers={"X-Read": "nothing"})
    unlike = api(other, path=url, headers={"X-Read": read})

    assert first.status_code == 201
    assert first.json() == {"whole": body, "amount": 0.1}
    assert replayed(again)
    assert problem(unlike) == (422, "idempotency_key_reused")
    assert len(runs) == 1


def test_R93_the_rest_of_a_body_goes_to_the_view(api: Api, mount: Mount) -> None:
    class Rest(GuardedView):
        authentication_classes = [Reading]

        def post(self, request: Request) -> Response:
            return Response({"rest": request._request.read().decode()}, status=201)

    response = api("0123456789", path=mount(Rest), headers={"X-Read": "a part"})

    assert response.json() == {"rest": "456789"}


def test_R93_a_refusal_after_the_body_was_read(api: Api, mount: Mount) -> None:
    class Refused(Signed):
        def check_permissions(self, request: Request) -> None:
            raise NotAuthenticated

    for read in READ:
        refused = api(path=mount(Refused), headers={"X-Read": read})
        assert refused.status_code == 401


# What is too much for a parser of the view's own.


def test_R93_a_form_beyond_djangos_limit_is_compared_byte_by_byte(
    api: Api, mount: Mount, settings: Any
) -> None:
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 2
    url = mount(BareView)

    assert api("a=1&b=2&c=3", path=url, content_type=FORM).status_code == 201
    assert replayed(api("a=1&b=2&c=3", path=url, content_type=FORM))
    assert api("b=2&a=1&c=3", path=url, content_type=FORM).status_code == 422
