"""Section A, R12 to R18: which requests the guard is for."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.parsers import JSONParser
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import EffectView
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount
from tests.unit.http.views import BareView, CreateView, FullViewSet

pytestmark = pytest.mark.django_db

# Methods.


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE"])
def test_R12_safe_methods_pass(api: Api, mount: Mount, method: str) -> None:
    class Readable(BareView):
        def get(self, request: Request) -> Response:
            return Response({"read": True})

        head = trace = get

    url = mount(Readable)
    for field in ("key-1", "key-1", '"malformed'):
        response = api(key=field, path=url, method=method, body="")
        assert response.status_code == 200
        assert not replayed(response)
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_R13_unsafe_methods_are_guarded(
    api: Api, mount: Mount, runs: list[str], method: str
) -> None:
    url = mount(BareView)

    missing = api(key=None, path=url, method=method)
    first, again = (api(path=url, method=method) for _ in range(2))

    assert problem(missing) == (400, "idempotency_key_missing")
    assert (first.status_code, replayed(first)) == (201, False)
    assert (again.status_code, replayed(again)) == (201, True)
    assert len(runs) == 1


def test_R13_methods_are_a_choice(api: Api, mount: Mount, runs: list[str]) -> None:
    url = mount(type("OnlyPost", (BareView,), {"idempotency_methods": {"post"}}))

    assert [replayed(api(path=url)) for _ in range(2)] == [False, True]
    assert [replayed(api(path=url, method="PUT")) for _ in range(2)] == [False, False]
    assert api(key=None, path=url, method="PUT").status_code == 201
    assert len(runs) == 4


# What comes before the claim.


class NotMallory(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return "X-Forbidden" not in request.headers


class OnDemand(BaseThrottle):
    def allow_request(self, request: Request, view: APIView) -> bool:
        return "X-Throttled" not in request.headers

    def wait(self) -> float:
        return 17


class Gated(EffectView):
    """One scope for all, so that nothing but the gate keeps a stored body from a caller."""

    permission_classes = [*EffectView.permission_classes, NotMallory]
    throttle_classes = [OnDemand]
    idempotency_scope = "django_idempotency.http.scopes.anyone"


@pytest.mark.parametrize(
    ("status", "user", "headers"),
    [
        (401, None, {}),
        (403, "mallory", {"X-Forbidden": "1"}),
        (429, "alice", {"X-Throttled": "1"}),
    ],
)
def test_R14_refused_callers_claim_nothing_and_get_no_stored_body(
    api: Api, mount: Mount, atomic_requests: bool, status: int, user: Any, headers: dict[str, str]
) -> None:
    url = mount(Gated)

    strange = api(path=url, user=user, headers=headers)
    claimed = IdempotencyRecord.objects.exists()
    stored = api(path=url)
    before = IdempotencyRecord.objects.values().get()
    refused = api(path=url, user=user, headers=headers)

    assert strange.status_code == refused.status_code == status
    assert not claimed
    assert stored.status_code == 201
    assert not replayed(refused)
    assert refused.content != stored.content
    assert IdempotencyRecord.objects.values().get() == before


@pytest.mark.parametrize("key", ['"malformed', None])
def test_R14_refusal_comes_before_the_key_is_looked_at(api: Api, key: str | None) -> None:
    assert api(user=None, key=key).status_code == 401


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (404, {"path": "/nowhere/"}),
        (405, {"method": "PATCH"}),
        (406, {"headers": {"Accept": "application/xml"}}),
    ],
)
def test_R15_what_reaches_no_code_of_the_view_claims_nothing(
    api: Api, status: int, arguments: dict[str, Any]
) -> None:
    assert api(**arguments).status_code == status
    assert not IdempotencyRecord.objects.exists()


class OnlyJSON(EffectView):
    parser_classes = [JSONParser]


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (415, "first", "text/plain"),
        (415, "name=first", "application/x-www-form-urlencoded"),
        (
            415,
            '--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nfirst\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
        (400, '{"name": ', "application/json"),
    ],
    ids=["text", "form", "multipart", "parse error"],
)
def test_R15_what_cannot_be_read_leaves_the_key_free(
    api: Api, mount: Mount, runs: list[str], status: int, body: str, content_type: str
) -> None:
    url = mount(OnlyJSON)

    refused = api(body, content_type=content_type, path=url)
    corrected = api({"name": "corrected"}, path=url)

    assert refused.status_code == status
    assert (corrected.status_code, replayed(corrected)) == (201, False)
    assert runs == ["corrected"]


def test_R15_404_of_the_view_itself_leaves_the_key_free(api: Api) -> None:
    refused = api(path="/set/999999/rename/")
    api({"name": "there"}, key="key-2", path="/set/")
    there = api(path=f"/set/{Effect.objects.get().pk}/rename/")

    assert refused.status_code == 404
    assert there.status_code == 200


# Kinds.


@pytest.mark.parametrize("kind", ["APIView", "generic", "ViewSet", "@action"])
def test_R18_every_kind_of_view_behaves_alike(
    api: Api, mount: Mount, atomic_requests: bool, runs: list[str], kind: str
) -> None:
    views = {
        "APIView": BareView.as_view(),
        "generic": CreateView.as_view(),
        "ViewSet": FullViewSet.as_view({"post": "create"}),
        "@action": FullViewSet.as_view({"post": "copy"}),
    }
    url = mount(views[kind])

    missing, first, again = api(key=None, path=url), api(path=url), api(path=url)
    other = api({"name": "other"}, path=url)

    assert problem(missing) == (400, "idempotency_key_missing")
    assert (first.status_code, replayed(first)) == (201, False)
    assert (again.content, replayed(again)) == (first.content, True)
    assert problem(other) == (422, "idempotency_key_reused")
    assert len(runs) == 1


def test_R18_router_and_action_url(api: Api, runs: list[str]) -> None:
    url = f"/set/{api({'name': 'a'}, path='/set/').json()['id']}/rename/"

    renamed, again = api(key="key-2", path=url), api(key="key-2", path=url)

    assert renamed.status_code == 200
    assert replayed(again)
    assert runs == ["a", "rename of a"]
