"""R17: a view that hands its request on to another one that is guarded as well."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import path
from django.views import View
from rest_framework.exceptions import APIException
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

import django_idempotency as idempotency
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import GUARD, USERS, api_for
from tests.unit.views.urls import GUARDED

pytestmark = pytest.mark.django_db(transaction=True)

ANYONE = "django_idempotency.http.scopes.anyone"
inner = {}


def hand_on(request):
    return inner["view"](request)


class HandOn(View):
    def dispatch(self, request, *args, **kwargs):
        return hand_on(request)


class MixedHandOn(IdempotencyMixin, APIView):
    def post(self, request):
        return hand_on(request._request)


@idempotent
async def async_hand_on(request):
    return await sync_to_async(hand_on)(request)


OUTER = {
    "middleware": hand_on,
    "middleware-class": HandOn.as_view(),
    "decorator": idempotent(hand_on),
    "async-decorator": async_hand_on,
    "mixin": MixedHandOn.as_view(),
}
urlpatterns = [path(f"{name}/", view) for name, view in OUTER.items()]


@pytest.fixture
def outer(request, settings):
    """A client of a view that hands on to another one."""
    settings.ROOT_URLCONF = __name__
    if request.param.startswith("middleware"):
        settings.MIDDLEWARE = [USERS, GUARD]
    return api_for("asgi" if "async" in request.param else "wsgi", f"/{request.param}/")


@pytest.mark.parametrize(
    ("outer", "within", "mode"),
    [
        ("middleware-class", "class", "single"),
        ("decorator", "drf", "joined"),
        ("async-decorator", "function", "joined"),
        ("mixin", "below-api-view", "joined"),
    ],
    indirect=["outer", "mode"],
)
def test_R17_a_view_handed_on_to_is_guarded_once(outer, within, mode, runs):
    inner["view"] = GUARDED[within]

    assert [(answer.status_code, replayed(answer)) for answer in (outer(), outer())] == [
        (201, False),
        (201, True),
    ]
    assert len(runs) == Effect.objects.count() == IdempotencyRecord.objects.count() == 1


class Conflict(APIException):
    status_code = 409


class Refusing(IdempotencyMixin, APIView):
    def post(self, request):
        assert request.idempotency is idempotency.current()
        assert request.idempotency.record_id == IdempotencyRecord.objects.get().pk
        Effect.objects.create(name="refused")
        raise Conflict


@pytest.mark.parametrize("outer", ["middleware", "async-decorator", "mixin"], indirect=True)
@pytest.mark.parametrize("mode", ["joined"], indirect=True)
def test_R17_R57_the_view_within_has_the_lease_around_it_and_rolls_its_own_work_back(
    outer, mode, monkeypatch
):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    inner["view"] = Refusing.as_view()

    answers = [(answer.status_code, replayed(answer)) for answer in (outer(), outer())]

    assert answers == [(409, False), (409, True)]
    assert not Effect.objects.exists()


@pytest.mark.parametrize("within", ["function", "drf"])
def test_R17_a_request_that_is_served_twice_is_guarded_twice(policy, within, runs):
    """As in a test of the project's: the lease of the first time is no guard around the second."""
    policy(HTTP={"SCOPE": ANYONE})
    request = APIRequestFactory().post("/", {}, headers={"Idempotency-Key": "k"}, format="json")

    assert [replayed(GUARDED[within](request)) for _ in range(2)] == [False, True]
    assert len(runs) == 1


# What a guard within says of another key.


@idempotent(scope=ANYONE, required=True)
def within(request):
    if request.headers.get("X-Then") == "lease_lost":
        lease = idempotency.current()
        lease.mark_lost()
        lease.check()
    return HttpResponse("done", status=201)


def own_request(then="", body="b"):
    """A request that the work makes to `within`, with a key of its own or with none."""
    key = {} if then == "idempotency_key_missing" else {"Idempotency-Key": "within"}
    headers = {**key, "X-Then": then}
    return RequestFactory().post("/", body, content_type="text/plain", headers=headers)


@pytest.mark.parametrize(
    ("then", "status", "state", "keep", "outer"),
    [
        ("idempotency_key_reused", 422, "RELEASED", "default", "middleware"),
        ("idempotency_key_missing", 400, "RELEASED", "stripe", "mixin"),
        ("in_progress", 409, "FAILED", lambda response, error: "keep", "decorator"),
        ("lease_lost", 409, "FAILED", lambda response, error: "keep", "middleware-class"),
    ],
    indirect=["outer"],
)
def test_R17_R55_a_problem_of_a_guard_within_is_never_kept(
    outer, policy, in_progress, then, status, state, keep
):
    """Nothing was executed there; what may be sent again may be claimed again, as it was."""
    inner["view"] = lambda request: within(own_request(then))
    if then in ("in_progress", "idempotency_key_reused"):
        within(own_request(body="another" if then != "in_progress" else "b"))
    if then == "in_progress":
        in_progress()
    policy(HTTP={"KEEP": keep})

    answers = [outer(key="around") for _ in range(2)]

    assert [problem(answer) for answer in answers] == [(status, then)] * 2
    assert not any(map(replayed, answers))
    assert IdempotencyRecord.objects.get(key="around").state == state
