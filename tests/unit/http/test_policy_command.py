"""What is guarded, as ``idempotency_policy`` tells it: views, the middleware, and tasks."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, _state
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.urls import include, path, re_path, resolve
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework import viewsets
from rest_framework.decorators import action, api_view
from rest_framework.routers import SimpleRouter

from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import IdempotencyViewMixin, idempotent
from django_idempotency.http.content import operation_of
from django_idempotency.http.inventory import dotted_name
from django_idempotency.policy import HTTPPolicy

HERE = __name__


def never_keep(response: Any, exception: Any) -> str:
    return "release"


def answer(self: Any, request: Any) -> HttpResponse:
    return HttpResponse()


@idempotent(required=True, lease=300, encryption_keys=["A" * 43], operation="payment-create")
def pay(request: Any) -> HttpResponse:
    return HttpResponse()


@idempotent(keep=never_keep, methods={"POST"})
async def apay(request: Any) -> HttpResponse:
    return HttpResponse()


@method_decorator(idempotent(store="memory", keep="stripe"), name="dispatch")
class Checkout(View):
    get = put = post = answer


class Report(IdempotencyViewMixin, View):
    get = answer


@method_decorator(idempotent(keep="success"), name="dispatch")
@method_decorator(idempotent(keep="stripe"), name="put")
class Nearer(Checkout):
    put = answer


class Refund(IdempotencyViewMixin, View):
    idempotency_operation = "refund"

    @property
    def idempotency_lease(self) -> int:
        return int(self.request.headers["X-Lease"])

    async def post(self, request: Any) -> HttpResponse:
        return HttpResponse()


class Around(View):
    post = answer


@api_view(["POST"])
@idempotent(keep="success")
def order(request: Any) -> HttpResponse:
    return HttpResponse()


@idempotent(keep="success")
@api_view(["POST"])
def quote(request: Any) -> HttpResponse:
    return HttpResponse()


@idempotent(store="elsewhere")
def lost(request: Any) -> HttpResponse:
    return HttpResponse()


def plain(request: Any) -> HttpResponse:
    return HttpResponse()


class Payments(IdempotencyMixin, viewsets.ViewSet):
    idempotency_actions = {"create", "capture"}

    create = update = destroy = list = answer

    @action(detail=True, methods=["post", "get"], idempotency_wait=5, idempotency_operation="take")
    def capture(self, request: Any, pk: Any = None) -> HttpResponse:
        return HttpResponse()


@pytest.fixture
def project(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    router = SimpleRouter()
    router.register("payments", Payments, basename="payment")
    in_v2 = [re_path(r"^of/(\d+)/$", order), path("named/", order, name="order")]
    urls = ModuleType("urls_of_a_project")
    urls.urlpatterns = [  # type: ignore[attr-defined]
        path("pay/<int:pk>/", pay),
        re_path("^v2/", include((in_v2, "api"), namespace="v2")),
        re_path(r"^again/(?P<pk>\d+)/$", pay),
        path("shop/", include([path("apay/", apay), path("checkout/", Checkout.as_view())])),
        path("nearer/", Nearer.as_view()),
        path("refund/", Refund.as_view()),
        path("report/", Report.as_view()),
        path("around/", idempotent(Around.as_view())),
        path("order/", order),
        path("quote/", quote),
        path("lost/", lost),
        path("plain/", plain),
        path("", include(router.urls)),
    ]
    monkeypatch.setitem(sys.modules, urls.__name__, urls)
    # As before when the test is over: the checks look at the tasks of the app that is current.
    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None)
    app = Celery("of_a_project", set_as_current=False)

    @app.task(name="charge", shared=False)
    @idempotent_task("{order}", on_failed="replay", transaction="single", retention=600)
    def charge(order: int) -> None: ...

    monkeypatch.setattr("django_idempotency.contrib.celery.guarded.project_app", lambda: app)
    settings.ROOT_URLCONF = urls.__name__
    settings.MIDDLEWARE = ["django_idempotency.http.middleware.IdempotencyMiddleware"]
    memory = {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}
    settings.IDEMPOTENCY = {"default": {"HTTP": {"ECHO_KEY": True}}, "memory": memory}


def shown(*words: str) -> str:
    out = io.StringIO()
    call_command("idempotency_policy", *words, stdout=out)
    return out.getvalue()


DEFAULT = {
    "keep": "2xx, 3xx, other 4xx",
    "release": "400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429",
    "fail": "5xx",
}
KEPT = {"echo_key": True}
BY_SUCCESS = {"keep": "2xx, 3xx", "fail": "4xx, 5xx"}


@dataclass(frozen=True)
class Shown:
    """What the command shows of a view."""

    routes: list[str]
    methods: str = "POST"
    transaction: str = "joined"
    store: str = "default"
    policy: dict[str, Any] = field(default_factory=lambda: KEPT)
    answers: dict[str, str] = field(default_factory=lambda: DEFAULT)
    #: Its operation, and what is computed for each request.
    options: dict[str, str] = field(default_factory=dict)


VIEWS = {
    f"{HERE}.pay": Shown(
        ["/pay/<int:pk>/", "/again/<pk>/"],
        methods="DELETE PATCH POST PUT",
        policy={"lease": "300 s", "encryption_keys": "1 of them", "required": True, **KEPT},
        options={"operation": "payment-create"},
    ),
    f"{HERE}.apay": Shown(
        ["/shop/apay/"],
        transaction="separate",
        policy={"methods": ["POST"], "keep": f"{HERE}.never_keep", **KEPT},
        answers={"decided by": f"{HERE}.never_keep"},
    ),
    f"{HERE}.Checkout": Shown(
        ["/shop/checkout/"],
        methods="POST PUT",
        transaction="separate",
        store="memory",
        policy={"keep": "stripe"},
        answers={"keep": "2xx, 3xx, 4xx, 5xx"},
    ),
    f"{HERE}.Nearer": Shown(
        ["/nearer/"], methods="POST PUT", policy={"keep": "success", **KEPT}, answers=BY_SUCCESS
    ),
    f"{HERE}.Refund": Shown(
        ["/refund/"],
        transaction="separate",
        options={"operation": "refund", "per request": "lease"},
    ),
    f"{HERE}.order": Shown(
        ["/v2/of/<var>/", "/v2/named/", "/order/"],
        policy={"keep": "success", **KEPT},
        answers=BY_SUCCESS,
    ),
    f"{HERE}.quote": Shown(["/quote/"], policy={"keep": "success", **KEPT}, answers=BY_SUCCESS),
    f"{HERE}.Payments.create": Shown(["/payments/"]),
    f"{HERE}.Payments.capture": Shown(
        ["/payments/<pk>/capture/"], policy={"wait": "5 s", **KEPT}, options={"operation": "take"}
    ),
    "django_idempotency.http.middleware.IdempotencyMiddleware": Shown(
        ["every plain view without a guard of its own"],
        methods="PATCH POST",
        transaction="separate",
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_R55_R56_a_view_its_policy_and_what_becomes_of_each_status(
    project: None, name: str
) -> None:
    view = VIEWS[name]

    [found] = json.loads(shown(name, "--json"))["guarded"]

    assert (found["routes"], found["methods"]) == (view.routes, view.methods.split())
    assert (found["store"], found["transaction"]) == (view.store, view.transaction)
    assert (found["policy"], found["answers"]) == (view.policy, view.answers)
    assert {it: found[it] for it in ("operation", "per request") if it in found} == view.options


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("/pay/1/", "payment-create"),
        ("/again/1/", "payment-create"),
        ("/shop/apay/", ""),
        ("/v2/of/1/", ""),
        ("/v2/named/", ""),
        ("/payments/", ""),
        ("/payments/1/capture/", "take"),
        ("/refund/", "refund"),
    ],
)
def test_R40_the_operations_of_a_view_are_those_of_its_records(
    project: None, rf: Any, url: str, given: str
) -> None:
    request = rf.post(url)
    request.resolver_match = resolve(url)
    every = json.loads(shown("--json"))["guarded"]
    [name] = [it["name"] for it in every if operation_of(request, given) in it["operations"]]
    view = request.resolver_match.func
    assert name.startswith(dotted_name(view))


def test_nothing_else_is_guarded_and_what_is_not_valid_is_told(project: None) -> None:
    every = {found["name"]: found for found in json.loads(shown("--json"))["guarded"]}
    assert len(every) == 14
    note = "its guard does nothing: it has no method that the guard is for"
    assert every[f"{HERE}.Report"]["note"] == note
    assert [name for name, facts in every.items() if "note" in facts] == [f"{HERE}.Report"]
    assert shown(f"{HERE}.Report") == f"view {HERE}.Report: /report/\n  {note}\n"
    assert "has no alias 'elsewhere'" in every[f"{HERE}.lost"]["problem"]
    assert "around its as_view()" in every[f"{HERE}.Around"]["problem"]
    assert every["charge"]["on_failed"] == "replay"
    text = shown("charge", "/lost")
    assert f"view {HERE}.lost: /lost/\n  not valid: IDEMPOTENCY has no alias" in text
    assert "\n  operation        payment-create\n" in shown(f"{HERE}.pay")
    assert "task charge\n  store           default (DatabaseStore)\n" in text
    assert "  commits         single\n  key             {order}\n" in text
    assert "  retention       600 s\n" in text
    assert "replays" not in text.partition("task charge")[2]
    [found] = json.loads(shown(f"{HERE}.pay", "--json", "--all"))["guarded"]
    assert found["policy"]["mismatch_status"] == HTTPPolicy().mismatch_status
    with pytest.raises(CommandError) as refused:
        shown("nonesuch")
    assert refused.value.returncode == 1
