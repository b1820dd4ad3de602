"""R13, R17: the middleware, and a guard that stands twice or more before one view."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import idempotent
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.forms.conftest import multipart
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.conftest import GUARD, USERS, api_for
from tests.unit.views.urls import FreeAsyncClass, FreeClass

pytestmark = pytest.mark.django_db(transaction=True)

ANYONE = "django_idempotency.http.scopes.anyone"


@pytest.fixture(params=["wsgi", "asgi"])
def stack(request: pytest.FixtureRequest, with_middleware: None) -> str:
    """With the middleware, under WSGI and under ASGI."""
    return str(request.param)


@pytest.fixture
def free(stack: str) -> Api:
    """A client of a plain view that is at home there; test_kinds has the others."""
    return api_for(stack, "/free-async-function/" if stack == "asgi" else "/free-function/")


@pytest.mark.parametrize("methods", [None, ["delete"]], ids=str)
def test_R13_middleware_guards_post_and_patch_or_what_is_chosen(
    free: Api, policy: SetPolicy, runs: list[str], methods: list[str] | None
) -> None:
    policy(HTTP={"METHODS": methods})
    asked = ("POST", "PATCH", "PUT", "DELETE", "GET")

    guarded = [m for m in asked if replayed([free(method=m, key=m) for _ in range(2)][-1])]

    assert guarded == (["POST", "PATCH"] if methods is None else ["DELETE"])
    assert len(runs) == 8 - len(guarded)
    assert IdempotencyRecord.objects.count() == len(guarded)


@csrf_exempt
def signed(request: HttpRequest) -> HttpResponse:
    """Read the body as it came, as who verifies a signature does."""
    return JsonResponse({"size": len(request.body)}, status=201)


@csrf_exempt
def handled(request: HttpRequest) -> HttpResponse:
    """Choose how uploads are handled, which Django allows before the body is parsed."""
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    return JsonResponse({"files": len(request.FILES)}, status=201)


@csrf_exempt
async def async_signed(request: HttpRequest) -> HttpResponse:
    return signed(request)


def with_form(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"effect": Effect.objects.create(name=request.POST["title"]).pk})


@method_decorator(idempotent(key_validator="uuid", scope=ANYONE), name="post")
class OwnPolicy(FreeClass):
    pass


@method_decorator(idempotent(key_validator="uuid", scope=ANYONE), name="post")
class AsyncOwnPolicy(FreeAsyncClass):
    pass


urlpatterns = [
    path("own-policy/", OwnPolicy.as_view()),
    path("async-own-policy/", AsyncOwnPolicy.as_view()),
    path("signed/", signed),
    path("handled/", handled),
    path("async-signed/", async_signed),
    path("with-form/", with_form),
]


@pytest.fixture
def body_views(stack: str, settings: Any) -> str:
    """The views above, under WSGI and under ASGI."""
    settings.ROOT_URLCONF = "tests.unit.views.test_middleware"
    return stack


FILE = ("file", "a.txt", "text/plain", b"content")


@pytest.mark.parametrize("path", ["/signed/", "/async-signed/", "/handled/"])
def test_R2_middleware_leaves_bodies_of_csrf_exempt_views_unread(
    body_views: str, path: str
) -> None:
    body, content_type = multipart(FILE)

    answer = api_for(body_views)(body, path=path, key=None, content_type=content_type)

    assert answer.json() == ({"files": 1} if path == "/handled/" else {"size": len(body)})


@pytest.mark.parametrize("transaction", ["joined", "separate"])
def test_R89_middleware_looks_for_no_key_in_a_form_of_a_csrf_exempt_view(
    body_views: str, policy: SetPolicy, transaction: str
) -> None:
    policy(TRANSACTION=transaction)
    kind = "application/x-www-form-urlencoded"
    arguments = {"path": "/signed/", "key": None, "content_type": kind}

    answers = [api_for(body_views)("idempotency_key=k", **arguments) for _ in range(2)]

    assert [replayed(answer) for answer in answers] == [False, False]
    assert not IdempotencyRecord.objects.exists()


def test_R89_middleware_finds_the_key_in_a_form(body_views: str) -> None:
    body, content_type = multipart(
        ("title", None, None, b"tea"), ("idempotency_key", None, None, b"key-1")
    )
    arguments = {"path": "/with-form/", "key": None, "content_type": content_type}

    answers = [api_for(body_views)(body, **arguments) for _ in range(2)]

    assert [replayed(answer) for answer in answers] == [False, True]


@pytest.mark.parametrize(
    "kind", ["function", "async-class", "drf", "above-api-view", "class-post", "async-class-post"]
)
def test_R17_view_of_its_own_guard_does_the_work_once(
    stack: str, kind: str, runs: list[str]
) -> None:
    """
    A DRF view, too: its mixin guards it, not the middleware.

    A class view does not show the mark of a method: who guards first guards alone.
    """
    api = api_for(stack, f"/{kind}/")

    first, again = api(), api()

    assert (first.status_code, replayed(first), replayed(again)) == (201, False, True)
    assert len(runs) == Effect.objects.count() == IdempotencyRecord.objects.count() == 1


@pytest.mark.parametrize("path", ["/own-policy/", "/async-own-policy/"])
def test_R17_decorator_of_one_method_keeps_its_policy(body_views: str, path: str) -> None:
    api = api_for(body_views, path)

    refused, first = api(key="no uuid"), api(key="8e03978e-40d5-43e8-bc93-6894a57f9324")

    assert problem(refused) == (400, "idempotency_key_invalid")
    assert first.status_code == 201
    assert IdempotencyRecord.objects.get().scope == "anyone"


def test_R17_other_methods_of_the_class_are_the_middlewares(body_views: str) -> None:
    api = api_for(body_views, "/own-policy/")

    assert [replayed(api(method="PATCH", key="no uuid")) for _ in range(2)] == [False, True]
    assert IdempotencyRecord.objects.get().scope != "anyone"


@pytest.mark.parametrize(
    "middleware", [[USERS, GUARD, GUARD], [GUARD, USERS]], ids=["twice", "first"]
)
def test_R17_middleware_that_stands_twice_or_first_does_the_work_once(
    stack: str, settings: Any, runs: list[str], middleware: list[str]
) -> None:
    """process_view comes after all the request phases."""
    settings.MIDDLEWARE = middleware
    api = api_for(stack, "/free-function/")

    assert [replayed(api()) for _ in range(2)] == [False, True]
    assert len(runs) == 1


@pytest.mark.parametrize("kind", ["free-drf", "free-api-view"])
def test_R17_view_of_drf_without_a_guard_is_left_alone(
    stack: str, kind: str, runs: list[str]
) -> None:
    """Before its authentication nobody could say whose key it is."""
    api = api_for(stack, f"/{kind}/")

    answers = [api() for _ in range(2)]

    assert not any(replayed(answer) for answer in answers)
    assert not IdempotencyRecord.objects.exists()
    assert len(runs) == 2


class Catching:
    """A middleware of the project's own that answers the exceptions of views."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse:
        return HttpResponse("caught", status=500)


@pytest.mark.parametrize("kind", ["function", "async-class"])
@pytest.mark.parametrize("mode", ["joined"], indirect=True)
def test_R17_exception_that_a_middleware_answers_rolls_back(
    stack: str, kind: str, settings: Any, mode: str
) -> None:
    settings.MIDDLEWARE = [USERS, "tests.unit.views.test_middleware.Catching", GUARD]

    response = api_for(stack, f"/{kind}/").then("boom")

    assert (response.status_code, response.content) == (500, b"caught")
    assert not Effect.objects.exists()
    assert IdempotencyRecord.objects.get().state == "FAILED"


def test_R15_unknown_url_never_claims(stack: str) -> None:
    assert api_for(stack, "/nowhere/")().status_code == 404
    assert not IdempotencyRecord.objects.exists()


class OnMemory(IdempotencyMiddleware):
    store = "memory"


def test_R17_store_of_a_subclass(settings: Any, runs: list[str]) -> None:
    settings.MIDDLEWARE = [USERS, "tests.unit.views.test_middleware.OnMemory"]
    api = api_for("wsgi", "/free-function/")

    assert [replayed(api(key="of a subclass")) for _ in range(2)] == [False, True]
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("kind", ["free-function", "free-class"])
@pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)
def test_R83_middleware_and_atomic_requests(
    stack: str, kind: str, monkeypatch: pytest.MonkeyPatch, mode: str, runs: list[str]
) -> None:
    """The guard opens the transaction of an unmarked view, too, and only for its own requests."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    api = api_for(stack, f"/{kind}/")
    api.client.raise_request_exception = False

    api.then("boom", key=None)
    api.then("boom")
    assert not Effect.objects.exists()
    assert [replayed(api(key="key-2")) for _ in range(2)] == [False, True]
    assert Effect.objects.count() == 1
