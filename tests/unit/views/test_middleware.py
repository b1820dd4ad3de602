"""R13, R17: the middleware, and a guard that stands twice or more before one view."""

from __future__ import annotations

import pytest
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.db import connections
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import idempotent
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.forms.conftest import multipart
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import GUARD, USERS, api_for, api_of
from tests.unit.views.urls import FreeAsyncClass, FreeClass

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("with_middleware")]

FILE = ("file", "a.txt", "text/plain", b"content")
KEY = ("idempotency_key", None, None, b"key-1")
both_stacks = pytest.mark.parametrize("stack", ["wsgi", "asgi"])


DEFAULTS = [("function", None, "POST PATCH PUT DELETE"), ("free-function", None, "POST PATCH")]
CHOSEN = [("function", {"PUT"}, "PUT"), ("free-async-function", ["delete"], "DELETE")]


@pytest.mark.parametrize(("kind", "methods", "guarded"), DEFAULTS + CHOSEN)
def test_R13_middleware_guards_post_and_patch_or_what_is_chosen(policy, kind, methods, guarded):
    policy(HTTP={"METHODS": methods})
    api, asked = api_of(kind), ("POST", "PATCH", "PUT", "DELETE", "GET")

    found = [m for m in asked if replayed([api(method=m, key=m) for _ in range(2)][-1])]

    assert found == guarded.split()
    assert IdempotencyRecord.objects.count() == len(found)


@csrf_exempt
def signed(request):
    """Read the body as it came, as who verifies a signature does."""
    return JsonResponse({"size": len(request.body)}, status=201)


@csrf_exempt
def handled(request):
    """Choose how uploads are handled, which Django allows before the body is parsed."""
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    return JsonResponse({"files": len(request.FILES)}, status=201)


@csrf_exempt
async def async_signed(request):
    return signed(request)


def with_form(request):
    return JsonResponse({"effect": Effect.objects.create(name=request.POST["title"]).pk})


own_policy = method_decorator(
    idempotent(key_validator="uuid", scope="django_idempotency.http.scopes.anyone"), name="post"
)
urlpatterns = [
    path("own-policy/", own_policy(type("OwnPolicy", (FreeClass,), {})).as_view()),
    path("async-own-policy/", own_policy(type("OwnPolicy", (FreeAsyncClass,), {})).as_view()),
    path("signed/", signed),
    path("handled/", handled),
    path("async-signed/", async_signed),
    path("with-form/", with_form),
]
own_urls = pytest.mark.urls(__name__)


@pytest.fixture
def project(project, request, settings):
    """The URLs above, for a test that asks for them."""
    if request.node.get_closest_marker("urls"):
        settings.ROOT_URLCONF = __name__


@own_urls
@both_stacks
@pytest.mark.parametrize("path", ["/signed/", "/async-signed/", "/handled/"])
def test_R2_R89_middleware_leaves_bodies_of_csrf_exempt_views_unread(stack, path):
    """It looks for no key in a form there."""
    body, kind = multipart(FILE, KEY)
    api = api_for(stack, path)

    answers = [api(body, key=None, content_type=kind) for _ in range(2)]

    expected = {"files": 1} if path == "/handled/" else {"size": len(body)}
    assert [answer.json() for answer in answers] == [expected] * 2
    assert not IdempotencyRecord.objects.exists()


@own_urls
@both_stacks
def test_R89_middleware_finds_the_key_in_a_form(stack):
    api = api_for(stack, "/with-form/")
    body, kind = multipart(("title", None, None, b"tea"), KEY)

    assert [replayed(api(body, key=None, content_type=kind)) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    "kind",
    ["function", "drf", "class-post", "async-class", "above-api-view", "async-class-post"],
)
def test_R17_view_of_its_own_guard_does_the_work_once(kind, runs):
    """
    A DRF view, too: its mixin guards it, not the middleware.

    A class view does not show the mark of a method: who guards first guards alone.
    """
    api = api_for("asgi" if "async" in kind else "wsgi", f"/{kind}/")

    assert [replayed(api()) for _ in range(2)] == [False, True]
    assert len(runs) == Effect.objects.count() == IdempotencyRecord.objects.count() == 1


@own_urls
@pytest.mark.parametrize(
    ("stack", "path"), [("wsgi", "/own-policy/"), ("asgi", "/async-own-policy/")]
)
def test_R17_decorator_of_one_method_keeps_its_policy_and_others_are_the_middlewares(stack, path):
    api = api_for(stack, path)

    assert problem(api(key="no uuid")) == (400, "idempotency_key_invalid")
    assert api(key="8e03978e-40d5-43e8-bc93-6894a57f9324").status_code == 201
    assert [replayed(api(method="PATCH", key="no uuid")) for _ in range(2)] == [False, True]
    scopes = dict(IdempotencyRecord.objects.values_list("key", "scope"))
    assert [scope == "anyone" for key, scope in sorted(scopes.items())] == [True, False]


@pytest.mark.parametrize(
    ("stack", "middleware"), [("wsgi", [USERS, GUARD, GUARD]), ("asgi", [GUARD, USERS])]
)
def test_R17_middleware_that_stands_twice_or_first_does_the_work_once(
    stack, settings, runs, middleware
):
    """process_view comes after all the request phases."""
    settings.MIDDLEWARE = middleware
    api = api_for(stack, "/free-function/")

    assert [replayed(api()) for _ in range(2)] == [False, True]
    assert len(runs) == 1


@pytest.mark.parametrize("kind", ["free-drf", "free-api-view"])
def test_R17_view_of_drf_without_a_guard_is_left_alone(api, runs):
    """Before its authentication nobody could say whose key it is."""
    assert [replayed(api()) for _ in range(2)] == [False, False]
    assert not IdempotencyRecord.objects.exists()
    assert len(runs) == 2


class Catching:
    """A middleware of the project's own that answers the exceptions of views."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        return self.get_response(request)

    def process_exception(self, request, error):
        return HttpResponse("caught", status=500)


@pytest.mark.parametrize("kind", ["function", "async-class"])
@pytest.mark.parametrize("mode", ["joined"], indirect=True)
def test_R17_exception_that_a_middleware_answers_rolls_back(api, settings, mode):
    settings.MIDDLEWARE = [USERS, f"{__name__}.Catching", GUARD]

    response = api.then("boom")

    assert (response.status_code, response.content) == (500, b"caught")
    assert not Effect.objects.exists()
    assert IdempotencyRecord.objects.get().state == "FAILED"


class OnMemory(IdempotencyMiddleware):
    store = "memory"


def test_R17_store_of_a_subclass(settings):
    settings.MIDDLEWARE = [USERS, f"{__name__}.OnMemory"]
    api = api_for("wsgi", "/free-function/")

    assert [replayed(api(key="of a subclass")) for _ in range(2)] == [False, True]
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize(
    ("stack", "kind", "mode"),
    [("wsgi", "free-function", "joined"), ("asgi", "free-class", "separate")],
    indirect=["mode"],
)
def test_R83_middleware_and_atomic_requests(stack, kind, monkeypatch, mode):
    """The guard opens the transaction of an unmarked view, too, and only for its own requests."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    api = api_for(stack, f"/{kind}/", raises=False)

    for key in (None, "key-1"):
        api.then("boom", key=key)
    assert not Effect.objects.exists()
    assert [replayed(api(key="key-2")) for _ in range(2)] == [False, True]
    assert Effect.objects.count() == 1
