"""System checks of decorated views, of the middleware's place, of fail_open and of CORS."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.decorators import login_required, permission_required
from django.core import checks
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework.decorators import api_view
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent

ANYONE = "django_idempotency.http.scopes.anyone"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
OURS = "django_idempotency.http.middleware.IdempotencyMiddleware"


@idempotent(required=True)
def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@idempotent(required=True, scope=ANYONE)
def scoped(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@idempotent(required=True, scope=ANYONE)
@api_view(["POST"])
def above(request: Any) -> HttpResponse:
    return HttpResponse()


@api_view(["POST"])
@idempotent(required=True, scope=ANYONE)
def below(request: Any) -> HttpResponse:
    return HttpResponse()


class Urls:
    def __init__(self, *views: Any) -> None:
        self.urlpatterns = [path(f"{number}/", view) for number, view in enumerate(views)]


def found(*views: Any, **settings: Any) -> list[str]:
    """The ids of what the checks say of a project with these views and settings."""
    from django.urls import clear_url_caches

    settings = {"IDEMPOTENCY": {"default": {}}, **settings}
    with override_settings(ROOT_URLCONF=Urls(*views), **settings):
        clear_url_caches()
        messages = checks.run_checks(tags=["urls", "idempotency"])
    assert all(m.hint for m in messages if str(m.id).startswith("django_idempotency"))
    return [
        str(message.id).partition(".")[2]
        for message in messages
        if str(message.id).startswith("django_idempotency")
    ]


# W014: decorators that let people log in.


def _view(*decorators: Any) -> Any:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    for decorator in reversed(decorators):
        view = decorator(view)
    return view


def test_W014_login_below_the_guard() -> None:
    guarded = idempotent(scope=ANYONE)
    for below in ([login_required], [never_cache, permission_required("auth.add_user")]):
        assert found(_view(guarded, *below)) == ["W014"]
        assert found(_view(never_cache, guarded, *below)) == ["W014"]
        assert found(_view(*below, guarded)) == []
        assert found(_view(*below)) == []


def test_W014_is_not_for_class_views_which_let_their_decorators_go_first() -> None:
    class Pay(View):
        pass

    both = [idempotent(scope=ANYONE), login_required]
    assert found(method_decorator(both, name="dispatch")(Pay).as_view()) == []
    assert found(both[0](login_required(View.as_view()))) == []


@pytest.fixture
def atomic_requests_setting(settings: Any) -> None:
    databases = {alias: dict(entry) for alias, entry in settings.DATABASES.items()}
    databases["default"]["ATOMIC_REQUESTS"] = True
    settings.DATABASES = databases


def test_R21_decorated_view_without_authentication_needs_a_scope() -> None:
    assert found(plain, MIDDLEWARE=[SESSIONS]) == ["E007"]
    assert found(plain, MIDDLEWARE=[SESSIONS, AUTHENTICATION]) == []
    assert found(scoped, MIDDLEWARE=[]) == []


def on(name: str, *bases: type) -> Any:
    """Return a class view with the decorator on this method."""
    members = {"post": lambda self, request: HttpResponse()}
    decorate = method_decorator(idempotent(scope=ANYONE), name=name)
    view: Any = decorate(type("Decorated", bases, members))
    return view.as_view()


@pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")
def test_R18_R83_W004_where_django_does_not_see_the_mark(atomic_requests_setting: None) -> None:
    assert found(on("post", View)) == found(on("post", APIView)) == found(below) == ["W004"]
    assert found(on("dispatch", View), on("post", IdempotencyMixin, APIView), above) == []


def test_R18_R83_W004_without_atomic_requests() -> None:
    assert found(on("post", View), on("post", APIView), below) == []


def test_R17_middleware_stands_after_all_that_look_at_views() -> None:
    policy = {"default": {"HTTP": {"SCOPE": ANYONE}}}
    wrong = [SESSIONS, AUTHENTICATION, OURS, CSRF]
    right = [SESSIONS, CSRF, AUTHENTICATION, OURS]
    assert found(MIDDLEWARE=wrong, IDEMPOTENCY=policy) == ["E008"]
    assert found(MIDDLEWARE=right, IDEMPOTENCY=policy) == []


@pytest.mark.parametrize("middleware", [[OURS], [SESSIONS, OURS, AUTHENTICATION]])
def test_R21_middleware_stands_after_authentication(middleware: list[str]) -> None:
    policy = {"default": {"HTTP": {"SCOPE": ANYONE}}}
    assert found(MIDDLEWARE=middleware) == ["E009"]
    assert found(MIDDLEWARE=middleware, IDEMPOTENCY=policy) == []


def test_R61_fail_open_is_a_warning() -> None:
    assert found(IDEMPOTENCY={"default": {"HTTP": {"FAIL_OPEN": True}}}) == ["W005"]


def test_R82_browsers_may_send_the_key_and_read_the_mark(monkeypatch: Any) -> None:
    from django.apps import apps

    monkeypatch.setattr(apps, "is_installed", lambda name: name == "corsheaders")
    right = {
        "CORS_ALLOW_HEADERS": ["accept", "idempotency-key"],
        "CORS_EXPOSE_HEADERS": ["Idempotency-Replayed"],
    }
    assert found() == ["W006", "W007"]
    assert found(**right) == []
    assert found(**{**right, "CORS_EXPOSE_HEADERS": []}) == ["W007"]
