"""R40, R23: what a view does, by its own name for it, by its URL's name, or by its route."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse, JsonResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from ninja import NinjaAPI
from rest_framework.decorators import action, api_view, authentication_classes
from rest_framework.viewsets import ViewSet

from django_idempotency.conf import InvalidStore, http_policy_for
from django_idempotency.contrib import ninja
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UnknownField
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import ANYONE, MISMATCH, BareView

pytestmark = pytest.mark.django_db


def work(request: Any, **kwargs: Any) -> HttpResponse:
    return JsonResponse({"id": Effect.objects.create(name="work").pk}, status=201)


def moved(request: Any, **kwargs: Any) -> HttpResponse:
    return work(request)


class WorkView(View):
    def post(self, request: Any, **kwargs: Any) -> HttpResponse:
        return work(request)


def guarded(view: Any = work, **given: Any) -> Any:
    return idempotent(scope=ANYONE, **given)(view)


def of_class(**given: Any) -> Any:
    decorator = method_decorator(idempotent(scope=ANYONE, **given), name="dispatch")
    return decorator(type("Decorated", (WorkView,), {})).as_view()


def of_mixin(**given: Any) -> Any:
    return BareView.as_view(**{f"idempotency_{name}": value for name, value in given.items()})


def above_api_view(**given: Any) -> Any:
    return guarded(api_view(["POST"])(work), **given)


def below_api_view(**given: Any) -> Any:
    by_header = authentication_classes([HeaderAuthentication])
    return api_view(["POST"])(by_header(idempotent(**given)(work)))


KINDS = [guarded, of_class, of_mixin, above_api_view, below_api_view]


@pytest.fixture
def at(api, settings):
    """``at(pattern, ...)`` sends a POST to ``/pay/7/`` of a project with these URLs alone."""

    def send(*patterns: Any, path: str = "/pay/7/") -> Any:
        settings.ROOT_URLCONF = type("Urls", (), {"urlpatterns": list(patterns)})
        return api(path=path)

    return send


def named() -> list[str]:
    return sorted(IdempotencyRecord.objects.values_list("operation", flat=True))


# The operation.


@pytest.mark.parametrize("kind", KINDS)
def test_R40_operation_is_the_views_name_for_it_else_the_urls_name_else_the_route(at, kind):
    for given, name, operation in (
        ({"operation": "payment-create"}, "pay", "POST payment-create"),
        ({}, "pay", "POST shop:pay"),
        ({}, None, "POST pay/<int:pk>/"),
    ):
        IdempotencyRecord.objects.all().delete()
        urls = [path("<int:pk>/", kind(**given), name=name)]
        assert at(path("pay/", include((urls, "shop")))).status_code == 201
        assert named() == [operation]


def test_R40_operation_of_the_root_and_of_a_path_that_no_url_has(at, rf):
    assert at(path("", guarded()), path="/").status_code == 201
    guarded()(rf.post("/tools/", headers={"Idempotency-Key": "k"}))
    assert named() == ["POST /", "POST /tools/"]


@pytest.mark.parametrize("name", [None, "pay"])
@pytest.mark.parametrize("scope_endpoint", [False, True])
def test_R40_R23_a_view_may_move_to_another_place_in_the_code(at, runs, name, scope_endpoint):
    for view in (work, moved):
        url = path("pay/<int:pk>/", guarded(view, scope_endpoint=scope_endpoint), name=name)
        assert replayed(at(url)) == (view is moved)
    assert len(runs) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["declared", "function", "method", "respond", "view"])
def test_R18_a_keyword_of_the_url_may_have_any_name(at, runs, kind, name):
    answers = [at(path(f"pay/<int:{name}>/", kind())) for _ in range(2)]
    assert [replayed(answer) for answer in answers] == [False, True]
    assert len(runs) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scope_endpoint", [False, True])
def test_R40_R23_a_url_may_change_below_an_operation(at, runs, kind, scope_endpoint):
    """The path that the client sends stays."""
    view = kind(operation="payment-create", scope_endpoint=scope_endpoint)
    routes = (("pay/<int:pk>/", "pay"), ("pay/<int:pk>/", None), ("<slug:way>/<str:id>/", "charge"))
    answers = [at(path(route, view, name=name)) for route, name in routes]
    assert [replayed(answer) for answer in answers] == [False, True, True]
    assert len(runs) == 1


def test_R40_R23_without_an_operation_another_name_is_422_and_another_route_too_or_runs_again(at):
    for scope_endpoint, of_route in ((False, 422), (True, 201)):
        IdempotencyRecord.objects.all().delete()
        view = guarded(scope_endpoint=scope_endpoint)
        assert at(path("pay/<int:pk>/", view)).status_code == 201
        assert problem(at(path("pay/<int:pk>/", view, name="pay"))) == MISMATCH
        assert at(path("pay/<int:id>/", view)).status_code == of_route
    assert replayed(at(path("pay/<int:id>/", view)))


def test_R40_nearest_operation_counts(at, api):
    @method_decorator(idempotent(operation="payment-refund"), name="refund")
    class Payments(IdempotencyMixin, ViewSet):
        authentication_classes = [HeaderAuthentication]
        idempotency_operation = "payments"

        def create(self, request: Any, **kwargs: Any) -> HttpResponse:
            return work(request)

        @action(detail=True, methods=["post"], idempotency_operation="payment-capture")
        def capture(self, request: Any, pk: Any = None) -> HttpResponse:
            return work(request)

        def refund(self, request: Any, pk: Any = None) -> HttpResponse:
            return work(request)

    class Computed(Payments):
        idempotency_operation = property(lambda self: f"computed-{self.request.method}")

    keywords = Payments.capture.kwargs
    urls = [
        path("pay/<int:pk>/", Payments.as_view({"post": "create"})),
        path("pay/<int:pk>/capture/", Payments.as_view({"post": "capture"}, **keywords)),
        path("pay/<int:pk>/refund/", Payments.as_view({"post": "refund"})),
        path("pay/<int:pk>/computed/", Computed.as_view({"post": "create"})),
    ]
    at(*urls)
    for name in ("capture", "refund", "computed"):
        api(path=f"/pay/7/{name}/", key=name)
    names = ["computed-POST", "payment-capture", "payment-refund", "payments"]
    assert named() == [f"POST {name}" for name in names]


@pytest.mark.parametrize("scope_endpoint", [False, True])
def test_R40_R23_an_operation_of_ninja(at, scope_endpoint):
    def url_of(name: str) -> Any:
        api = NinjaAPI(urls_namespace=f"shop-{name}-{scope_endpoint}")
        keep = ninja.idempotent(
            operation="payment-create", scope=ANYONE, scope_endpoint=scope_endpoint
        )
        api.post("/7/", url_name=name)(keep(lambda request: work(request)))
        return path("pay/", api.urls)

    answers = [at(url_of(name)) for name in ("pay", "charge")]
    assert [replayed(answer) for answer in answers] == [False, True]
    assert named() == ["POST payment-create"]


# One key on two endpoints.


def test_R23_one_key_on_two_endpoints(at, api):
    one = {"operation": "pay", "scope_endpoint": True}
    for first, second, status in (
        ({}, {}, 422),
        ({"operation": "pay"}, {"operation": "pay"}, 422),
        ({"scope_endpoint": True}, {"scope_endpoint": True}, 201),
        (one, {**one, "operation": "refund"}, 201),
        (one, one, 422),  # two URLs of one operation are one endpoint
    ):
        IdempotencyRecord.objects.all().delete()
        urls = [
            path("pay/<int:pk>/", guarded(**first), name="same"),
            path("refund/", guarded(**second), name="same"),
        ]
        assert at(*urls).status_code == 201
        assert api(path="/refund/").status_code == status


# Mistakes.


@pytest.mark.parametrize("wrong", [{"OPERATION": "pay"}, {"HTTP": {"OPERATION": "pay"}}])
def test_an_operation_is_no_setting(settings, wrong):
    settings.IDEMPOTENCY = {"default": wrong}
    with pytest.raises(InvalidStore, match=r"'OPERATION'\. .*@idempotent\(operation=\.\.\.\)"):
        http_policy_for("default")


def test_what_names_no_operation_is_refused():
    for wrong in (None, 5, lambda request: "pay"):
        with pytest.raises(TypeError, match="operation must be a string"):
            idempotent(operation=wrong)
        with pytest.raises(TypeError, match="operation must be a string"):
            ninja.idempotent(operation=wrong)
    with pytest.raises(UnknownField, match="Did you mean 'operation'"):
        idempotent(operatoin="pay")


def test_R18_what_names_no_operation_of_a_mixin_raises(at):
    with pytest.raises(TypeError, match="operation must be a string"):
        at(path("pay/<int:pk>/", of_mixin(operation=5)))
