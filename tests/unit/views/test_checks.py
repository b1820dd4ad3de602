"""System checks of decorated views, of the middleware's place, of fail_open and of CORS."""

from __future__ import annotations

from functools import partial

from django.apps import apps
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.db import connections
from django.db.transaction import non_atomic_requests
from django.http import HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from ninja import NinjaAPI
from ninja.security import django_auth
from rest_framework.decorators import api_view
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency.contrib.ninja import idempotent as of_ninja
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import IdempotencyViewMixin, idempotent
from tests.unit.http.checked import AUTHENTICATION, CSRF, OURS, SESSIONS, ids, messages
from tests.unit.http.views import ANYONE

SCOPED = {"IDEMPOTENCY": {"default": {"HTTP": {"SCOPE": ANYONE}}}}
scoped = idempotent(required=True, scope=ANYONE)


def view(request):
    return HttpResponse()


def test_W014_login_below_the_guard():
    for login in (login_required, permission_required("auth.add_user")):
        assert ids(scoped(login(view))) == ["W014"]
        assert ids(never_cache(scoped(never_cache(login(view))))) == ["W014"]
        assert ids(login(scoped(view)), login(view)) == []


def test_W014_is_not_for_class_views_which_let_their_decorators_go_first():
    decorate = method_decorator([scoped, login_required], name="dispatch")

    assert ids(decorate(type("Pay", (View,), {})).as_view()) == []
    assert ids(scoped(login_required(View.as_view()))) == ["E018"]


def on(name, *bases):
    """Return a class view with the decorator on this method."""
    methods = {"post": lambda self, request: HttpResponse()}
    return method_decorator(scoped, name=name)(type("Decorated", bases, methods)).as_view()


def test_R18_R83_W004_where_django_does_not_see_the_mark(monkeypatch):
    behind = type("Behind", (LoginRequiredMixin, on("dispatch", View).view_class), {}).as_view()
    unseen = [on("post", View), on("post", APIView), api_view(["POST"])(scoped(view)), behind]
    above = scoped(api_view(["POST"])(view))
    mixed = [on("post", IdempotencyMixin, APIView), on("post", IdempotencyViewMixin, View)]
    exempted = method_decorator(non_atomic_requests, name="dispatch")(type("Exempt", (View,), {}))
    hidden = method_decorator(scoped, name="dispatch")(exempted).as_view()
    seen = [on("dispatch", View), *mixed, above, hidden]
    assert ids(*unseen) == []

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    assert ids(*unseen) == ["W004"] * 4
    assert ids(*seen) == []


def test_R21_R83_operations_of_ninja_are_checked_as_views_are(monkeypatch):
    def views(function, **policy):
        api = NinjaAPI(urls_namespace="checks", auth=policy.pop("auth", None))
        api.post("/")(of_ninja(**policy)(function))
        return [pattern.callback for pattern in api.urls[0]]

    async def coroutine(request):
        return {}

    without = {"MIDDLEWARE": []}
    assert ids(*views(view), **without) == ["E007"]
    assert ids(*views(view, auth=django_auth), **without) == []
    assert ids(*views(view, transaction="sinlge"), **without) == ["E013"]
    assert ids(*views(view), *views(coroutine), **SCOPED) == []

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    assert ids(*views(view), **SCOPED) == ["W004"]
    assert "E015" in ids(*views(coroutine, transaction="joined"), **SCOPED)
    exempted = [*views(view), *views(coroutine)]
    for callback in exempted:
        non_atomic_requests(callback)
    assert ids(*exempted, **SCOPED) == []


def test_R17_middleware_stands_after_all_that_look_at_views():
    """Whose keys there are: tests/unit/http/test_checks.py."""
    assert ids(MIDDLEWARE=[SESSIONS, AUTHENTICATION, OURS, CSRF], **SCOPED) == ["E008"]
    assert ids(MIDDLEWARE=[SESSIONS, CSRF, AUTHENTICATION, OURS], **SCOPED) == []


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

    assert ids(scoped(Pay.as_view()), scoped(login_required(read))) == ["E018"] * 2
    assert ids(*guarded, *map(login_required, guarded), *free, **middleware) == []
    assert ids(login_required(Pay.as_view()), **middleware) == ["E019"]
    assert ids(partial(Pay.as_view()), partial(Mixed.as_view()), **middleware) == ["E019"]
    assert ids(scoped(partial(Pay.as_view()))) == ["E018"]
    assert ids(login_required(Pay.as_view())) == []
    [(_, message)] = messages(login_required(Pay.as_view()), **middleware)
    assert "class Pay(IdempotencyViewMixin, ...)" in message.hint


def test_R17_W018_middleware_names_the_views_of_drf_that_have_no_guard():
    def alone(request):
        raise NotImplementedError

    class Free(APIView):
        def post(self, request):
            raise NotImplementedError

    class FreeSet(ViewSet):
        create = list = Free.post

    class Guarded(IdempotencyMixin, Free):
        idempotency_scope = ANYONE

    free = [Free.as_view(), FreeSet.as_view({"post": "create"}), api_view(["PATCH"])(alone)]
    read = [FreeSet.as_view({"get": "list"}), api_view(["GET", "PUT"])(alone)]
    closed = type("Closed", (Free,), {"http_method_names": ["get"]}).as_view()
    own = [Guarded.as_view(), scoped(api_view(["POST"])(view)), api_view(["POST"])(scoped(view))]
    middleware = {"MIDDLEWARE": [SESSIONS, AUTHENTICATION, OURS], **SCOPED}

    assert ids(*free) == ids(*read, closed, *own, view, **middleware) == []
    assert [ids(it, **middleware) for it in free] == [["W018"]] * 3
    [(_, message)] = messages(*free, *free, *own, **middleware)
    assert message.msg.count(__name__) == 3
    assert f"{__name__}.alone." in message.msg
    many = [type(f"Free{number}", (Free,), {}).as_view() for number in range(7)]
    [(_, message)] = messages(*many, **middleware)
    assert message.msg.endswith("Free4 and 2 others.")


def test_R82_browsers_may_send_the_key_and_read_the_mark(monkeypatch):
    monkeypatch.setattr(apps, "is_installed", lambda name: name == "corsheaders")
    headers = {"CORS_ALLOW_HEADERS": ["accept", "idempotency-key"]}

    assert ids() == ["W006", "W007"]
    assert ids(**headers, CORS_EXPOSE_HEADERS=["Idempotency-Replayed"]) == []
    assert ids(**headers, CORS_EXPOSE_HEADERS=[]) == ["W007"]
