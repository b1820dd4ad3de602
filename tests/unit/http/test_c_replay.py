"""Section C: the first request and its replays."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from django.http import HttpResponse, HttpResponseRedirect
from django.test import TestCase
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import Record
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import BareView, CreateView, GuardedView, answering

pytestmark = pytest.mark.django_db

#: Header fields that every response has for reasons of its own.
SURROUNDINGS = {"Idempotency-Replayed", "Cache-Control", "Content-Length"}


def kept(response: Any) -> dict[str, str]:
    return {name: value for name, value in response.items() if name not in SURROUNDINGS}


# The first.


def test_R24_first_is_the_views_own_response(api: Api) -> None:
    response = api()

    effect = Effect.objects.get()
    assert response.status_code == 201
    assert response.json() == {"id": effect.pk, "name": "first"}
    assert response.headers["X-Custom"] == f"custom-{effect.pk}"
    assert "Idempotency-Replayed" not in response.headers
    assert "Idempotency-Stored" not in response.headers
    assert "Cache-Control" not in response.headers


def test_R36_first_callers_response_is_untouched(api: Api) -> None:
    guarded, free = api(), api(key=None, path="/optional/")

    assert guarded.status_code == free.status_code
    added = guarded.headers.keys() - free.headers.keys() - {"Allow"}
    assert added == {"Idempotency-Expires"}
    assert free.headers.keys() - {"Allow"} <= guarded.headers.keys()
    assert guarded.cookies.keys() == free.cookies.keys() == {"seen"}


# Again.


def test_R25_I4_again_is_equal(api: Api, mode: str, atomic_requests: bool, runs: list[str]) -> None:
    first, again = api(), api()

    assert again.status_code == first.status_code == 201
    assert again.content == first.content
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["ETag"] == first.headers["ETag"]
    assert again.headers["Content-Type"] == first.headers["Content-Type"] == "application/json"
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(runs) == 1


def test_R25_replay_header_can_have_another_name(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"REPLAY_HEADER": "X-Replay"})

    first, again = api(), api()

    assert "X-Replay" not in first.headers
    assert again.headers["X-Replay"] == "true"
    assert "Idempotency-Replayed" not in again.headers


def test_R25_replay_header_can_be_left_out(api: Api, policy: SetPolicy, runs: list[str]) -> None:
    policy(HTTP={"REPLAY_HEADER": None})

    first, again = api(), api()

    assert again.content == first.content
    assert kept(again).keys() == kept(first).keys() - {"X-Request-Id"}
    assert len(runs) == 1


def test_R26_duplicates_are_replays(api: Api, mode: str, runs: list[str]) -> None:
    responses = [api() for _ in range(5)]

    assert [replayed(response) for response in responses] == [False, True, True, True, True]
    assert len({response.content for response in responses}) == 1
    assert len(runs) == 1
    assert Effect.objects.count() == 1
    assert IdempotencyRecord.objects.get().attempts == 1


def test_R27_replay_is_a_snapshot(api: Api) -> None:
    first = api()
    Effect.objects.update(name="changed")

    changed = api()
    Effect.objects.all().delete()
    deleted = api()

    assert changed.content == deleted.content == first.content


ANSWERS: dict[str, Any] = {
    "200": lambda request: Response({"done": True}),
    "201 and Location": lambda request: Response(
        {"id": 1}, status=201, headers={"Location": "/things/1/"}
    ),
    "202": lambda request: Response({"id": 1}, status=202, headers={"Retry-After": "7"}),
    "204": lambda request: Response(status=204),
    "302": lambda request: HttpResponseRedirect("/elsewhere/"),
    "303": lambda request: HttpResponse(status=303, headers={"Location": "/things/1/"}),
    "307": lambda request: HttpResponse(status=307, headers={"Location": "/things/1/"}),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_R28_statuses_replay_as_they_are(api: Api, mount: Mount, answer: str) -> None:
    url = mount(answering(ANSWERS[answer]))

    first, again = api(path=url), api(path=url)

    assert str(first.status_code) == answer[:3]
    assert replayed(again)
    assert again.status_code == first.status_code
    assert again.reason_phrase == first.reason_phrase
    assert again.content == first.content
    for name in ("Location", "Content-Type", "Retry-After"):
        assert again.headers.get(name) == first.headers.get(name)


BODIES = {
    "every byte": (bytes(range(256)), {"Content-Type": "application/octet-stream"}),
    "gzip": (gzip.compress(b"a" * 99), {"Content-Type": "text/plain", "Content-Encoding": "gzip"}),
    "PDF": (
        b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
        {"Content-Type": "application/pdf", "Content-Disposition": 'inline; filename="a.pdf"'},
    ),
    "invalid UTF-8": (b"\xff\xfe\xfa", {"Content-Type": "text/plain; charset=utf-8"}),
    "large and compressible": (b"abc" * 99_999, {"Content-Type": "text/plain"}),
}


@pytest.mark.parametrize("body", BODIES)
def test_R29_bodies_are_byte_equal(api: Api, mount: Mount, body: str) -> None:
    content, headers = BODIES[body]
    url = mount(answering(lambda request: HttpResponse(content, headers=headers)))

    first, again = api(path=url), api(path=url)

    assert first.content == again.content == content
    assert replayed(again)
    for name, value in headers.items():
        assert again.headers[name] == value
    assert again.headers["Content-Length"] == str(len(content))


# The retry that is not quite the same.


class TextRenderer(BaseRenderer):
    media_type = "text/plain"
    format = "txt"

    def render(self, data: Any, *args: Any, **kwargs: Any) -> bytes:
        return str(data).encode()


def test_R32_another_accept_gets_the_stored_representation(api: Api, mount: Mount) -> None:
    class Both(BareView):
        renderer_classes = [JSONRenderer, TextRenderer]

    url = mount(Both)
    first = api(path=url, headers={"Accept": "application/json"})
    again = api(path=url, headers={"Accept": "text/plain"})

    assert replayed(again)
    assert again.content == first.content
    assert again.headers["Content-Type"] == "application/json"


def test_R33_if_match_on_a_retry_is_a_replay(api: Api, mount: Mount) -> None:
    class Versioned(GuardedView):
        def put(self, request: Request) -> Response:
            version = Effect.objects.count()
            if request.headers["If-Match"] != f'"{version}"':
                return Response(status=412)
            Effect.objects.create(name="version")
            return Response({"version": version + 1}, headers={"ETag": f'"{version + 1}"'})

    arguments: dict[str, Any] = {
        "path": mount(Versioned),
        "method": "PUT",
        "headers": {"If-Match": '"0"'},
    }

    first, again = api(**arguments), api(**arguments)

    assert first.status_code == again.status_code == 200
    assert replayed(again)
    assert again.headers["ETag"] == '"1"'
    assert api(key="key-2", **arguments).status_code == 412


class NotWithdrawn(BasePermission):
    withdrawn = False

    def has_permission(self, request: Request, view: APIView) -> bool:
        return not self.withdrawn


def test_R34_permission_withdrawn_in_between(
    api: Api, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Withdrawable(BareView):
        permission_classes = [NotWithdrawn]

    url = mount(Withdrawable)
    first = api(path=url)
    monkeypatch.setattr(NotWithdrawn, "withdrawn", True)

    refused = api(path=url)

    assert first.status_code == 201
    assert refused.status_code == 403
    assert first.content not in refused.content


def test_R34_replay_check_sees_request_and_record(api: Api, mount: Mount) -> None:
    seen = []

    class Checked(BareView):
        def idempotency_replay_check(self, request: Request, record: Record) -> bool:
            seen.append((request, record))
            return True

    url = mount(Checked)
    api(path=url)
    assert seen == []

    assert replayed(api(path=url))
    [(request, record)] = seen
    assert isinstance(request, Request)
    assert request.user.username == "alice"
    assert record.record_id == IdempotencyRecord.objects.get().pk


def test_R34_replay_check_that_says_no_is_403(api: Api, mount: Mount, runs: list[str]) -> None:
    class Checked(BareView):
        def idempotency_replay_check(self, request: Request, record: Record) -> bool:
            return "X-Allowed" in request.headers

    url = mount(Checked)
    first = api(path=url)
    refused = api(path=url)
    allowed = api(path=url, headers={"X-Allowed": "1"})

    assert problem(refused) == (403, "replay_refused")
    assert refused.headers["Cache-Control"] == "no-store"
    assert "Idempotency-Replayed" not in refused.headers
    assert allowed.content == first.content
    assert len(runs) == 1


def test_R34_replay_check_may_raise_what_a_view_may(api: Api, mount: Mount) -> None:
    class Checked(BareView):
        def idempotency_replay_check(self, request: Request, record: Record) -> bool:
            raise PermissionDenied

    url = mount(Checked)
    first, refused = api(path=url), api(path=url)

    assert first.status_code == 201
    assert refused.status_code == 403
    assert refused.headers["Content-Type"] == "application/json"


def never(request: Any, record: Record) -> bool:
    """A replay_check for the dotted path below."""
    return False


def test_R34_replay_check_as_a_dotted_path(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"REPLAY_CHECK": "tests.unit.http.test_c_replay.never"})

    assert api().status_code == 201
    assert problem(api()) == (403, "replay_refused")


def test_R35_browsable_api_works_and_replays(api: Api, mount: Mount, mode: str) -> None:
    class Browsable(CreateView):
        renderer_classes = [JSONRenderer, BrowsableAPIRenderer]

    url, html = mount(Browsable), {"Accept": "text/html"}
    first, again = api(path=url, headers=html), api(path=url, headers=html)

    assert first.status_code == 201
    assert first.headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"HTTP 201 Created" in first.content
    assert replayed(again)
    assert again.content == first.content
    assert again.headers["Content-Type"] == first.headers["Content-Type"]


def test_R35_browsable_api_shows_what_can_be_read(api: Api, mount: Mount) -> None:
    class Browsable(CreateView):
        renderer_classes = [BrowsableAPIRenderer, JSONRenderer]

        def get(self, request: Request) -> Response:
            return Response({"shown": True})

    response = api(key=None, path=mount(Browsable), method="GET", body="")

    assert response.status_code == 200
    assert b"shown" in response.content


def test_R36_finalize_response_and_rendering_happen_once(api: Api, mount: Mount) -> None:
    finalised, rendered = [], []

    class Counting(JSONRenderer):
        def render(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            rendered.append(data)
            return super().render(data, *args, **kwargs)

    class Finalised(BareView):
        renderer_classes = [Counting]

        def finalize_response(self, request: Any, response: Any, *args: Any, **kw: Any) -> Any:
            finalised.append(response)
            return super().finalize_response(request, response, *args, **kw)

    url = mount(Finalised)
    first, again = api(path=url), api(path=url)

    assert (first.status_code, replayed(again)) == (201, True)
    assert (len(finalised), len(rendered)) == (1, 1)


class InATestCase(TestCase):
    """Django's own TestCase, without pytest."""

    def test_R25_replay_in_a_test_case(self) -> None:
        api = Api()

        first, again = api(), api()

        assert first.status_code == 201
        assert replayed(again)
        assert again.content == first.content
        assert Effect.objects.count() == 1

    def test_R57_release_rolls_back_in_a_test_case(self) -> None:
        api = Api()

        refused = api.then("invalid")

        assert refused.status_code == 400
        assert Effect.objects.count() == 0
        assert api().status_code == 201
