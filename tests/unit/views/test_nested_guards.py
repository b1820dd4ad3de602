"""R17: a view that hands its request on to another one that is guarded as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path
from django.views import View
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

import django_idempotency as idempotency
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, SetPolicy
from tests.unit.views.conftest import GUARD, USERS, api_for
from tests.unit.views.urls import GUARDED

pytestmark = pytest.mark.django_db(transaction=True)

ANYONE = "django_idempotency.http.scopes.anyone"
#: Guarded views that are no coroutines: what is handed on to.
INNER = {name: view for name, view in GUARDED.items() if "async" not in name}
inner: dict[str, Callable[..., Any]] = {}


def hand_on(request: HttpRequest) -> Any:
    return inner["view"](request)


class HandOn(View):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return hand_on(request)


class MixedHandOn(IdempotencyMixin, APIView):
    def post(self, request: Request) -> Any:
        return hand_on(request._request)


@idempotent
async def async_hand_on(request: HttpRequest) -> Any:
    return await sync_to_async(hand_on)(request)


OUTER: dict[str, Any] = {
    "middleware": hand_on,
    "middleware-class": HandOn.as_view(),
    "decorator": idempotent(hand_on),
    "async-decorator": async_hand_on,
    "mixin": MixedHandOn.as_view(),
}
urlpatterns = [path(f"{name}/", view) for name, view in OUTER.items()]


@pytest.fixture
def outer(request: pytest.FixtureRequest, settings: Any) -> Api:
    """A client of a view that hands on to another one."""
    settings.ROOT_URLCONF = "tests.unit.views.test_nested_guards"
    if request.param.startswith("middleware"):
        settings.MIDDLEWARE = [USERS, GUARD]
    stack = "asgi" if "async" in request.param else "wsgi"
    return api_for(stack, f"/{request.param}/")


each_outer = pytest.mark.parametrize("outer", OUTER, indirect=True)
#: Each guard around each other kind of guard, by turns.
PAIRS = [
    ("middleware", "function", "joined"),
    ("middleware", "drf", "separate"),
    ("middleware-class", "class", "single"),
    ("decorator", "above-api-view", "joined"),
    ("decorator", "class", "separate"),
    ("async-decorator", "function", "joined"),
    ("async-decorator", "viewset", "single"),
    ("mixin", "below-api-view", "joined"),
    ("mixin", "drf", "single"),
    ("mixin", "function", "separate"),
]


@pytest.mark.parametrize(("outer", "within", "mode"), PAIRS, indirect=["outer", "mode"])
def test_R17_a_view_handed_on_to_is_guarded_once(
    outer: Api, within: str, mode: str, runs: list[str]
) -> None:
    inner["view"] = INNER[within]

    first, again = outer(), outer()

    assert (first.status_code, again.status_code) == (201, 201)
    assert (replayed(first), replayed(again)) == (False, True)
    assert len(runs) == Effect.objects.count() == IdempotencyRecord.objects.count() == 1


@each_outer
@pytest.mark.parametrize("mode", ["joined"], indirect=True)
def test_R17_R57_with_atomic_requests_the_view_within_rolls_its_own_work_back(
    outer: Api, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    monkeypatch.setitem(inner, "view", Refusing.as_view())

    answers = [outer() for _ in range(2)]

    assert [answer.status_code for answer in answers] == [409, 409]
    assert [replayed(answer) for answer in answers] == [False, True]
    assert not Effect.objects.exists()


class Conflict(APIException):
    status_code = 409


class Refusing(IdempotencyMixin, APIView):
    def post(self, request: Request) -> Response:
        Effect.objects.create(name="refused")
        raise Conflict


class Leasing(IdempotencyMixin, APIView):
    def post(self, request: Any) -> Response:
        assert request.idempotency is idempotency.current()
        return Response({"record": str(request.idempotency.record_id)})


@each_outer
def test_R17_the_view_within_has_the_lease_of_the_guard_around_it(outer: Api) -> None:
    inner["view"] = Leasing.as_view()

    named = outer().json()["record"]

    assert named == str(IdempotencyRecord.objects.get().pk)


@pytest.mark.parametrize("within", ["function", "class", "drf", "above-api-view"])
def test_R17_a_request_that_is_served_twice_is_guarded_twice(
    policy: SetPolicy, within: str, runs: list[str]
) -> None:
    """As in a test of the project's: the lease of the first time is no guard around the second."""
    policy(HTTP={"SCOPE": ANYONE})
    request = APIRequestFactory().post("/", {}, headers={"Idempotency-Key": "k"}, format="json")

    assert [replayed(INNER[within](request)) for _ in range(2)] == [False, True]
    assert len(runs) == 1


# What a guard within says of another key.


LOST, WITHIN = "lease_lost", "within"


@idempotent(scope=ANYONE, required=True)
def within(request: HttpRequest) -> HttpResponse:
    if request.headers.get("X-Then") == LOST:
        lease = idempotency.current()
        assert lease is not None
        lease.mark_lost()
        lease.check()
    return HttpResponse("done", status=201)


def own_request(then: str = "", body: str = "b") -> HttpRequest:
    """A request that the work makes to `within`, with a key of its own or with none."""
    key = {} if then == "idempotency_key_missing" else {"Idempotency-Key": WITHIN}
    headers = {**key, "X-Then": then}
    return RequestFactory().post("/", body, content_type="text/plain", headers=headers)


#: What the guard within says, what becomes of the record around it, and what is asked of the rest.
SAID = [
    ("idempotency_key_reused", 422, "RELEASED", "default", "middleware"),
    ("idempotency_key_missing", 400, "RELEASED", "stripe", "mixin"),
    ("in_progress", 409, "FAILED", lambda response, error: "keep", "decorator"),
    ("in_progress", 409, "FAILED", "stripe", "async-decorator"),
    (LOST, 409, "FAILED", "default", "mixin"),
    (LOST, 409, "FAILED", lambda response, error: "keep", "middleware-class"),
]


@pytest.mark.parametrize(("then", "status", "state", "keep", "outer"), SAID, indirect=["outer"])
def test_R17_R55_a_problem_of_a_guard_within_is_never_kept(
    outer: Api,
    policy: SetPolicy,
    in_progress: InProgress,
    then: str,
    status: int,
    state: str,
    keep: Any,
) -> None:
    """Nothing was executed there; what may be sent again may be claimed again, as it was."""
    inner["view"] = lambda request: within(own_request(then))
    if then in ("in_progress", "idempotency_key_reused"):
        within(own_request(body="another" if then != "in_progress" else "b"))
    if then == "in_progress":
        in_progress()
    policy(HTTP={"KEEP": keep})

    answers = [outer(key="around") for _ in range(2)]

    assert [problem(answer) for answer in answers] == [(status, then)] * 2
    assert not any(replayed(answer) for answer in answers)
    assert IdempotencyRecord.objects.get(key="around").state == state
