"""R34: the guard of a class view stands before its handler, within the checks of dispatch."""

from __future__ import annotations

import logging
from functools import wraps

import pytest
from django.contrib.auth.mixins import UserPassesTestMixin
from django.db import connection, connections
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import GUARD, USERS, api_for
from tests.unit.views.urls import FreeAsyncClass, FreeClass

pytestmark = pytest.mark.django_db(transaction=True)

anybody = idempotent(scope="django_idempotency.http.scopes.anyone")
on_dispatch = method_decorator(anybody, name="dispatch")


class Withdrawable(UserPassesTestMixin):
    """What a project may put before a view; `allowed` is what its test says."""

    allowed = True
    raise_exception = True

    def test_func(self):
        return Withdrawable.allowed


def new(*bases):
    return type("New", bases, {})


#: Where the guard may stand; the last has the middleware.
PLACES = {
    "on the class": lambda view: on_dispatch(new(Withdrawable, view)).as_view(),
    "on a base": lambda view: new(Withdrawable, on_dispatch(new(view))).as_view(),
    "around as_view()": lambda view: anybody(new(Withdrawable, view).as_view()),
    "around decorators": lambda view: anybody(never_cache(new(Withdrawable, view).as_view())),
    "middleware": lambda view: never_cache(new(Withdrawable, view).as_view()),
}


@pytest.fixture
def serve(settings, policy, monkeypatch):
    """`serve(view)` is a client of it, under WSGI unless told otherwise; all have one scope."""
    policy(HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})
    monkeypatch.setattr(Withdrawable, "allowed", True)

    def mount(view, stack="wsgi", *, middleware=False):
        monkeypatch.setattr("tests.unit.views.urls.urlpatterns", [path("here/", view)])
        settings.ROOT_URLCONF = "tests.unit.views.urls"
        settings.MIDDLEWARE = [USERS, GUARD] if middleware else [USERS]
        return api_for(stack, "/here/")

    return mount


@pytest.mark.parametrize(
    ("place", "view_class", "stack"),
    [
        *((place, FreeClass, "wsgi") for place in PLACES),
        *((place, FreeAsyncClass, "asgi") for place in ("on the class", "around decorators")),
    ],
)
def test_R34_check_of_a_mixin_is_asked_on_a_replay(serve, runs, place, view_class, stack):
    api = serve(PLACES[place](view_class), stack, middleware="middleware" in place)
    Withdrawable.allowed = False
    refused_first = api()
    assert not IdempotencyRecord.objects.exists()

    Withdrawable.allowed = True
    first, again = api(), api()
    kept = IdempotencyRecord.objects.values().get()
    Withdrawable.allowed = False
    refused = api()

    assert [refused_first.status_code, first.status_code, refused.status_code] == [403, 201, 403]
    assert first.content not in refused.content
    assert IdempotencyRecord.objects.values().get() == kept
    Withdrawable.allowed = True
    assert replayed(again)
    assert replayed(api())
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("place", "view_class"),
    [
        ("on the class", FreeClass),
        ("around as_view()", FreeAsyncClass),
        ("middleware", FreeClass),
    ],
)
def test_R15_method_that_the_view_lacks_never_claims(serve, policy, caplog, place, view_class):
    policy(HTTP={"KEEP": "stripe"})
    view = PLACES[place](type("OnlyGet", (View,), {"get": view_class.get}))
    api = serve(view, middleware=place == "middleware")

    assert [api(method=method).status_code for method in ("POST", "PATCH")] == [405, 405]
    assert not IdempotencyRecord.objects.exists()
    assert not [log for log in caplog.records if log.name == "django_idempotency"]


class Overridden(FreeClass):
    """Forms can only post: a hidden field names the method."""

    def dispatch(self, request, *args, **kwargs):
        request.method = "DELETE"
        return super().dispatch(request, *args, **kwargs)

    def delete(self, request):
        return super().post(request)


@pytest.mark.parametrize("place", PLACES)
def test_R1_handler_of_a_method_that_dispatch_has_changed_is_guarded(serve, policy, runs, place):
    http = {"SCOPE": "django_idempotency.http.scopes.anyone", "METHODS": {"POST", "DELETE"}}
    policy(HTTP={**http, "REQUIRED": True})
    api = serve(PLACES[place](Overridden), middleware=place == "middleware")
    first, again, keyless = api(), api(), api(key=None)
    assert (first.status_code, replayed(again), len(runs)) == (201, True, 1)
    assert problem(keyless) == (400, "idempotency_key_missing")


@on_dispatch
class Dressed(View):
    """Its dispatch does something before and after."""

    seen = []

    def dispatch(self, request, *args, **kwargs):
        self.seen.append((request.idempotency, connection.in_atomic_block))
        response = super().dispatch(request, *args, **kwargs)
        response["X-Dressed"] = "yes"
        return response

    def post(self, request):
        effect = Effect.objects.create(name="dressed")
        return HttpResponse(str((effect.pk, connection.in_atomic_block)))

    def get(self, request):
        return HttpResponse(str(connection.in_atomic_block))


def test_R18_R83_own_dispatch_runs_on_each_request_outside_of_ATOMIC_REQUESTS(serve, monkeypatch):
    """They are around the handler, or around all of a method that is not guarded."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    Dressed.seen.clear()
    api = serve(Dressed.as_view())

    first, again, keyless, read = api(), api(), api(key=None), api(method="GET")

    assert Dressed.seen == [*[(None, False)] * 3, (None, True)]
    assert all(b"True" in answer.content for answer in (first, keyless, read))
    assert (replayed(again), again.content) == (True, first.content)
    assert first["X-Dressed"] == again["X-Dressed"] == "yes"


@pytest.mark.parametrize("decorate", [lambda view: on_dispatch(view).as_view(), None])
def test_R25_dispatch_that_is_the_work_itself_is_guarded(serve, runs, decorate):
    class Worker(View):
        def dispatch(self, request, *args, **kwargs):
            return HttpResponse(str(Effect.objects.create(name="work").pk))

    view = decorate(Worker) if decorate else anybody(Worker.as_view())
    api = serve(view)

    assert [replayed(api()) for _ in range(2)] == [False, True]
    assert len(runs) == 1


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name[:6] == "django"]


@pytest.mark.parametrize("is_async", [False, True])
def test_R62_dispatch_that_passes_the_handler_by_is_not_silent(serve, caplog, is_async):
    """What it answers without success may be a check's."""

    async def coroutine(response):
        return response

    class Ajax(FreeAsyncClass if is_async else FreeClass):
        def dispatch(self, request, *args, **kwargs):
            if status := request.headers.get("X-Ajax"):
                response = HttpResponse("created", status=int(status))
                return coroutine(response) if is_async else response
            return super().dispatch(request, *args, **kwargs)

    api = serve(on_dispatch(Ajax).as_view())
    with caplog.at_level(logging.ERROR, "django_idempotency"):
        passed_by, *others = (api(headers={"X-Ajax": status}) for status in ("200", "302", "199"))

    assert (passed_by.content, passed_by["Idempotency-Stored"]) == (b"created", "false")
    assert told(caplog) == [
        "Ajax answered a request with an idempotency key without a call of its post(): nothing "
        "was guarded."
    ]
    others.append(api(headers={"X-Ajax": "200"}, key=None))
    assert not any("Idempotency-Stored" in other for other in others)
    assert [replayed(api()) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("stack", ["wsgi", "asgi"])
def test_R62_decorator_that_answers_by_itself_is_not_silent(serve, caplog, stack):
    """It says that it is of a class, whose handler it does not call."""
    by_itself = wraps(FreeClass.as_view())(lambda request: HttpResponse("by itself"))

    @wraps(FreeAsyncClass.as_view())
    async def async_by_itself(request):
        return HttpResponse("by itself")

    with caplog.at_level(logging.ERROR, "django_idempotency"):
        view = by_itself if stack == "wsgi" else async_by_itself
        answer = serve(view, stack, middleware=True)()

    assert answer["Idempotency-Stored"] == "false"
    [line] = told(caplog)
    assert "nothing was guarded" in line


@pytest.mark.parametrize(
    ("place", "base"),
    [
        ("on a subclass", FreeClass),
        ("around as_view()", FreeAsyncClass),
        ("around both", FreeClass),
    ],
)
def test_R17_R1_of_two_guards_of_a_class_the_outer_one_guards_alone(serve, caplog, base, place):
    own = idempotent(required=True, scope="django_idempotency.http.scopes.anyone")
    guarded = on_dispatch(new(base))
    if place == "on a subclass":
        view = method_decorator(own, name="dispatch")(new(guarded)).as_view()
    elif place == "around as_view()":
        view = own(guarded.as_view())
    else:
        view = own(anybody(guarded.as_view()))

    api = serve(view, "asgi" if base is FreeAsyncClass else "wsgi")
    assert problem(api(key=None)) == (400, "idempotency_key_missing")
    answers = [api(), api()]

    assert [replayed(answer) for answer in answers] == [False, True]
    assert "Idempotency-Stored" not in answers[1]
    assert told(caplog) == []


def test_R17_middleware_leaves_a_class_to_the_guard_on_its_base(serve, caplog):
    """The mixin's dispatch hides the mark of the guard behind it."""
    policy = idempotent(header="X-Own", scope="django_idempotency.http.scopes.anyone")
    guarded = method_decorator(policy, name="dispatch")(new(FreeAsyncClass))

    api = serve(new(Withdrawable, guarded).as_view(), "asgi", middleware=True)
    answers = [api(headers={"X-Own": "1"}, key=key) for key in ("1", "2")]

    assert [replayed(answer) for answer in answers] == [False, True]
    assert "Idempotency-Stored" not in answers[1]
    assert told(caplog) == []
