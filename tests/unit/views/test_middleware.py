"""R13, R17: the middleware, and a guard that stands twice or more before one view."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from asgiref.sync import sync_to_async
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.db.transaction import non_atomic_requests
from django.http import HttpResponse, JsonResponse
from django.test import RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.exceptions import APIException
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

import django_idempotency as idempotency
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.forms.conftest import multipart
from tests.unit.http.api import problem, replayed
from tests.unit.http.cases import name_of
from tests.unit.http.views import ANYONE
from tests.unit.views import urls
from tests.unit.views.conftest import GUARD, USERS, api_for, api_of
from tests.unit.views.urls import GUARDED, FreeAsyncClass

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("with_middleware")]


@pytest.mark.parametrize(
    ("kind", "methods", "guarded"),
    [
        ("free-function", None, "POST PATCH"),
        ("free-async-function", ["delete"], "DELETE"),
    ],
)
def test_R13_middleware_guards_post_and_patch_or_what_is_chosen(policy, kind, methods, guarded):
    policy(HTTP={"METHODS": methods})
    api, asked = api_of(kind), ("POST", "PATCH", "PUT", "DELETE", "GET")

    found = [m for m in asked if replayed([api(method=m, key=m) for _ in range(2)][-1])]

    assert found == guarded.split()
    assert IdempotencyRecord.objects.count() == len(found)


@csrf_exempt
def handled(request):
    """Choose how uploads are handled, which Django allows before the body is parsed."""
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    return JsonResponse({"files": len(request.FILES)}, status=201)


def with_form(request):
    return JsonResponse({"effect": Effect.objects.create(name=request.POST["title"]).pk})


class FreeSet(ViewSet):
    create = urls.FreeDRF.post


own_policy = method_decorator(idempotent(key_validator="uuid", scope=ANYONE), name="post")
urlpatterns = [
    *urls.urlpatterns,
    path("own-policy/", own_policy(type("OwnPolicy", (FreeAsyncClass,), {})).as_view()),
    path("handled/", handled),
    path("free-drf/", urls.FreeDRF.as_view()),
    path("free-viewset/", FreeSet.as_view({"post": "create"})),
    path("with-form/", with_form),
]


@pytest.fixture(autouse=True)
def own_urls(settings, project):
    settings.ROOT_URLCONF = __name__


@pytest.mark.parametrize(
    ("stack", "path", "guarded"), [("wsgi", "/handled/", False), ("asgi", "/with-form/", True)]
)
def test_R2_R89_middleware_finds_the_key_in_a_form_unless_the_view_is_csrf_exempt(
    policy, stack, path, guarded
):
    """The bodies of those it leaves unread."""
    key = ("idempotency_key", None, None, b"key-1")
    title = ("title", None, None, b"tea")
    body, kind = multipart(("file", "a.txt", "text/plain", b"content"), title, key)
    api = api_for(stack, path)

    answers = [api(body, key=None, content_type=kind) for _ in range(2)]

    assert [replayed(answer) for answer in answers] == [False, guarded]
    assert IdempotencyRecord.objects.exists() == guarded
    if not guarded:
        assert answers[1].json() == {"files": 1}
        policy(HTTP={"REQUIRED": True})
        assert problem(api(body, key=None, content_type=kind)) == (400, "idempotency_key_missing")


def test_R17_decorator_of_one_method_keeps_its_policy_and_others_are_the_middlewares():
    api = api_for("asgi", "/own-policy/")

    assert problem(api(key="no uuid")) == (400, "idempotency_key_invalid")
    assert api(key="8e03978e-40d5-43e8-bc93-6894a57f9324").status_code == 201
    assert [replayed(api(method="PATCH", key="no uuid")) for _ in range(2)] == [False, True]
    scopes = dict(IdempotencyRecord.objects.values_list("key", "scope"))
    assert [scope == "anyone" for key, scope in sorted(scopes.items())] == [True, False]


@pytest.mark.parametrize("name", ["dispatch", "post"])
@pytest.mark.parametrize("in_one", [True, False], ids=["list", "stacked"])
def test_R17_R83_a_view_whose_non_atomic_requests_hides_its_mark_keeps_its_policy(
    monkeypatch, in_one, name
):
    """``method_decorator`` copies the attributes of one over those of the other."""

    class Fails(View):
        def post(self, request):
            return HttpResponse(status=500)

    guard = idempotent(keep="stripe")
    if in_one:
        method_decorator([non_atomic_requests, guard], name=name)(Fails)
    else:
        method_decorator(non_atomic_requests, name=name)(Fails)
        method_decorator(guard, name=name)(Fails)
    monkeypatch.setattr(f"{__name__}.urlpatterns", [path("here/", Fails.as_view())])
    api = api_for("wsgi", "/here/", raises=False)

    answers = [api() for _ in range(2)]

    assert [(answer.status_code, replayed(answer)) for answer in answers] == [
        (500, False),
        (500, True),
    ]


@pytest.mark.parametrize("path", ["/free-drf/", "/free-viewset/"])
def test_R17_view_of_drf_without_a_guard_is_left_alone(runs, path):
    """Before its authentication nobody could say whose key it is."""
    api = api_for("wsgi", path)
    answers = [api() for _ in range(2)]
    assert [replayed(answer) for answer in answers] == [False, False]
    assert not any("Idempotency-Stored" in answer.headers for answer in answers)
    assert not IdempotencyRecord.objects.exists()
    assert len(runs) == 2


class OnMemory(IdempotencyMiddleware):
    store = "memory"


def test_R17_store_of_a_subclass(settings):
    settings.MIDDLEWARE = [USERS, f"{__name__}.OnMemory"]
    api = api_for("wsgi", "/free-function/")

    assert [replayed(api(key="of a subclass")) for _ in range(2)] == [False, True]
    assert not IdempotencyRecord.objects.exists()


# A view that hands its request on to another one that is guarded as well.

inner = {}


def hand_on(request):
    return inner["view"](request)


class HandOn(View):
    idempotency_guards = "dispatch"

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
urlpatterns += [path(f"{name}/", view) for name, view in OUTER.items()]


@pytest.fixture
def outer(request, settings):
    """A client of a view that hands on to another one."""
    settings.MIDDLEWARE = [USERS, GUARD] if request.param.startswith("middleware") else [USERS]
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


@pytest.mark.parametrize("outer", ["async-decorator", "mixin"], indirect=True)
@pytest.mark.parametrize("mode", ["joined"], indirect=True)
def test_R17_R57_the_view_within_has_the_lease_around_it_and_rolls_its_own_work_back(
    outer, mode, atomic
):
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


class Problem(NamedTuple):
    """What a guard within says, and what becomes of the record around it."""

    code: str
    status: int
    record: str
    keep: object = "default"


def keep_all(response, exception):
    return "keep"


@pytest.mark.parametrize(
    ("told", "outer"),
    [
        (Problem("idempotency_key_reused", 422, "RELEASED"), "middleware"),
        (Problem("idempotency_key_missing", 400, "RELEASED", keep="stripe"), "mixin"),
        (Problem("in_progress", 409, "FAILED", keep=keep_all), "decorator"),
        (Problem("lease_lost", 409, "FAILED", keep=keep_all), "middleware-class"),
    ],
    indirect=["outer"],
    ids=name_of,
)
def test_R17_R55_a_problem_of_a_guard_within_is_never_kept(outer, policy, in_progress, told):
    """Nothing was executed there; what may be sent again may be claimed again, as it was."""
    inner["view"] = lambda request: within(own_request(told.code))
    if told.code in ("in_progress", "idempotency_key_reused"):
        within(own_request(body="another" if told.code != "in_progress" else "b"))
    if told.code == "in_progress":
        in_progress()
    policy(HTTP={"KEEP": told.keep})

    answers = [outer(key="around") for _ in range(2)]

    assert [problem(answer) for answer in answers] == [(told.status, told.code)] * 2
    assert not any(map(replayed, answers))
    assert IdempotencyRecord.objects.get(key="around").state == told.record
