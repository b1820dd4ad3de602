"""R13, R17: the middleware, and a guard that stands twice or more before one view."""

from __future__ import annotations

import pytest
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import idempotent
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.forms.conftest import multipart
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import USERS, api_for, api_of
from tests.unit.views.urls import FreeAsyncClass

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("with_middleware")]


@pytest.mark.parametrize(
    ("kind", "methods", "guarded"),
    [
        ("function", None, "POST PATCH PUT DELETE"),
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


@csrf_exempt
async def async_signed(request):
    """Read the body as it came, as who verifies a signature does."""
    return JsonResponse({"size": len(request.body)}, status=201)


def with_form(request):
    return JsonResponse({"effect": Effect.objects.create(name=request.POST["title"]).pk})


own_policy = method_decorator(
    idempotent(key_validator="uuid", scope="django_idempotency.http.scopes.anyone"), name="post"
)
urlpatterns = [
    path("own-policy/", own_policy(type("OwnPolicy", (FreeAsyncClass,), {})).as_view()),
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
@pytest.mark.parametrize(
    ("stack", "path", "guarded"),
    [
        ("wsgi", "/handled/", False),
        ("asgi", "/async-signed/", False),
        ("wsgi", "/with-form/", True),
        ("asgi", "/with-form/", True),
    ],
)
def test_R2_R89_middleware_finds_the_key_in_a_form_unless_the_view_is_csrf_exempt(
    stack, path, guarded
):
    """Bodies of those it leaves unread."""
    key = ("idempotency_key", None, None, b"key-1")
    title = ("title", None, None, b"tea")
    body, kind = multipart(("file", "a.txt", "text/plain", b"content"), title, key)
    api = api_for(stack, path)

    answers = [api(body, key=None, content_type=kind) for _ in range(2)]

    assert [replayed(answer) for answer in answers] == [False, guarded]
    assert IdempotencyRecord.objects.exists() == guarded
    if not guarded:
        assert answers[1].json() in ({"files": 1}, {"size": len(body)})


@pytest.mark.parametrize("kind", ["function", "drf", "class-post", "async-class-post"])
def test_R17_view_of_its_own_guard_does_the_work_once(kind, runs):
    """
    A DRF view, too: its mixin guards it, not the middleware.

    A class view does not show the mark of a method: who guards first guards alone.
    """
    api = api_for("asgi" if "async" in kind else "wsgi", f"/{kind}/")

    assert [replayed(api()) for _ in range(2)] == [False, True]
    assert len(runs) == Effect.objects.count() == IdempotencyRecord.objects.count() == 1


@own_urls
def test_R17_decorator_of_one_method_keeps_its_policy_and_others_are_the_middlewares():
    api = api_for("asgi", "/own-policy/")

    assert problem(api(key="no uuid")) == (400, "idempotency_key_invalid")
    assert api(key="8e03978e-40d5-43e8-bc93-6894a57f9324").status_code == 201
    assert [replayed(api(method="PATCH", key="no uuid")) for _ in range(2)] == [False, True]
    scopes = dict(IdempotencyRecord.objects.values_list("key", "scope"))
    assert [scope == "anyone" for key, scope in sorted(scopes.items())] == [True, False]


@pytest.mark.parametrize("kind", ["free-api-view"])
def test_R17_view_of_drf_without_a_guard_is_left_alone(api, runs):
    """Before its authentication nobody could say whose key it is."""
    assert [replayed(api()) for _ in range(2)] == [False, False]
    assert not IdempotencyRecord.objects.exists()
    assert len(runs) == 2


class OnMemory(IdempotencyMiddleware):
    store = "memory"


def test_R17_store_of_a_subclass(settings):
    settings.MIDDLEWARE = [USERS, f"{__name__}.OnMemory"]
    api = api_for("wsgi", "/free-function/")

    assert [replayed(api(key="of a subclass")) for _ in range(2)] == [False, True]
    assert not IdempotencyRecord.objects.exists()
