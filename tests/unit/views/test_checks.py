"""System checks of decorated views, of the middleware's place, of fail_open and of CORS."""

from __future__ import annotations

from functools import partial

from django.apps import apps
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core import checks
from django.db import connections
from django.db.transaction import non_atomic_requests
from django.http import HttpResponse
from django.test import override_settings
from django.urls import clear_url_caches, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from ninja import NinjaAPI
from ninja.security import django_auth
from rest_framework.decorators import api_view
from rest_framework.views import APIView

from django_idempotency.contrib.ninja import idempotent as of_ninja
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import IdempotencyViewMixin, idempotent

ANYONE = "django_idempotency.http.scopes.anyone"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
OURS = "django_idempotency.http.middleware.IdempotencyMiddleware"
SCOPED = {"IDEMPOTENCY": {"default": {"HTTP": {"SCOPE": ANYONE}}}}
scoped = idempotent(required=True, scope=ANYONE)


def view(request):
    return HttpResponse()


class Urls:
    def __init__(self, *views):
        self.urlpatterns = [path(f"{number}/", view) for number, view in enumerate(views)]


def of_project(*views, **settings):
    """What the checks say of a project with these views and settings."""
    settings = {"IDEMPOTENCY": {"default": {}}, **settings}
    with override_settings(ROOT_URLCONF=Urls(*views), **settings):
        clear_url_caches()
        messages = checks.run_checks(tags=["urls", "idempotency"])
    ours = [message for message in messages if str(message.id).startswith("django_idempotency.")]
    assert all(message.hint for message in ours)
    return ours


def found(*views, **settings):
    """See `of_project`: the ids."""
    return [message.id.partition(".")[2] for message in of_project(*views, **settings)]


def test_W014_login_below_the_guard():
    for login in (login_required, permission_required("auth.add_user")):
        assert found(scoped(login(view))) == ["W014"]
        assert found(never_cache(scoped(never_cache(login(view))))) == ["W014"]
        assert found(login(scoped(view)), login(view)) == []


def test_W014_is_not_for_class_views_which_let_their_decorators_go_first():
    decorate = method_decorator([scoped, login_required], name="dispatch")

    assert found(decorate(type("Pay", (View,), {})).as_view()) == []
    assert found(scoped(login_required(View.as_view()))) == ["E018"]


def on(name, *bases):
    """Return a class view with the decorator on this method."""
    methods = {"post": lambda self, request: HttpResponse()}
    return method_decorator(scoped, name=name)(type("Decorated", bases, methods)).as_view()


def test_R18_R83_W004_where_django_does_not_see_the_mark(monkeypatch):
    behind = type("Behind", (LoginRequiredMixin, on("dispatch", View).view_class), {}).as_view()
    unseen = [on("post", View), on("post", APIView), api_view(["POST"])(scoped(view)), behind]
    above = scoped(api_view(["POST"])(view))
    mixed = [on("post", IdempotencyMixin, APIView), on("post", IdempotencyViewMixin, View)]
    seen = [on("dispatch", View), *mixed, above]
    assert found(*unseen) == []

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    assert found(*unseen) == ["W004"] * 4
    assert found(*seen) == []


def test_R21_R83_operations_of_ninja_are_checked_as_views_are(monkeypatch):
    def views(function, **policy):
        api = NinjaAPI(urls_namespace="checks", auth=policy.pop("auth", None))
        api.post("/")(of_ninja(**policy)(function))
        return [pattern.callback for pattern in api.urls[0]]

    async def coroutine(request):
        return {}

    without = {"MIDDLEWARE": []}
    assert found(*views(view), **without) == ["E007"]
    assert found(*views(view, auth=django_auth), **without) == []
    assert found(*views(view, transaction="sinlge"), **without) == ["E013"]
    assert found(*views(view), *views(coroutine), **SCOPED) == []

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    assert found(*views(view), **SCOPED) == ["W004"]
    assert "E015" in found(*views(coroutine, transaction="joined"), **SCOPED)
    exempted = [*views(view), *views(coroutine)]
    for callback in exempted:
        non_atomic_requests(callback)
    assert found(*exempted, **SCOPED) == []


def test_R17_middleware_stands_after_all_that_look_at_views():
    """Whose keys there are: tests/unit/http/test_checks.py."""
    assert found(MIDDLEWARE=[SESSIONS, AUTHENTICATION, OURS, CSRF], **SCOPED) == ["E008"]
    assert found(MIDDLEWARE=[SESSIONS, CSRF, AUTHENTICATION, OURS], **SCOPED) == []


class Pay(View):
    def post(self, request):
        return HttpResponse()


class Mixed(IdempotencyViewMixin, Pay):
    idempotency_scope = ANYONE


def test_R17_E018_E019_class_views_below_decorators_need_the_mixin():
    read = type("Read", (View,), {"get": Pay.post}).as_view()
    on_post, behind = on("post", View), type("Behind", (LoginRequiredMixin, Mixed), {}).as_view()
    guarded = [on("dispatch", View), on_post, Mixed.as_view(), behind]
    decorated = method_decorator(login_required, name="dispatch")(type("Decorated", (Pay,), {}))
    free = [view, Pay.as_view(), decorated.as_view(), login_required(view), login_required(read)]
    middleware = {"MIDDLEWARE": [SESSIONS, AUTHENTICATION, OURS], **SCOPED}

    assert found(scoped(Pay.as_view()), scoped(login_required(read))) == ["E018"] * 2
    assert found(*guarded, *map(login_required, guarded), *free, **middleware) == []
    assert found(login_required(Pay.as_view()), **middleware) == ["E019"]
    assert found(partial(Pay.as_view()), partial(Mixed.as_view()), **middleware) == ["E019"]
    assert found(scoped(partial(Pay.as_view()))) == ["E018"]
    assert found(login_required(Pay.as_view())) == []
    [message] = of_project(login_required(Pay.as_view()), **middleware)
    assert "class Pay(IdempotencyViewMixin, ...)" in message.hint


def test_R61_fail_open_is_a_warning():
    assert found(IDEMPOTENCY={"default": {"HTTP": {"FAIL_OPEN": True}}}) == ["W005"]


def test_R82_browsers_may_send_the_key_and_read_the_mark(monkeypatch):
    monkeypatch.setattr(apps, "is_installed", lambda name: name == "corsheaders")
    headers = {"CORS_ALLOW_HEADERS": ["accept", "idempotency-key"]}

    assert found() == ["W006", "W007"]
    assert found(**headers, CORS_EXPOSE_HEADERS=["Idempotency-Replayed"]) == []
    assert found(**headers, CORS_EXPOSE_HEADERS=[]) == ["W007"]
