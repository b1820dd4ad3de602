"""R18: `@idempotent` itself, on what it stands, what it says of a view, and what it refuses."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import resolve
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UnknownField
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.conftest import api_for
from tests.unit.views.urls import GUARDED

pytestmark = pytest.mark.django_db(transaction=True)

ANYONE = "django_idempotency.http.scopes.anyone"


def view(request: HttpRequest) -> HttpResponse:
    """Say yes."""
    return HttpResponse("yes")


async def async_view(request: HttpRequest) -> HttpResponse:
    """Say yes."""
    return HttpResponse("yes")


# What it makes.


@pytest.mark.parametrize("arguments", [None, {}, {"required": True, "lease": 5}])
@pytest.mark.parametrize("plain", [view, async_view])
def test_R18_bare_and_with_arguments(plain: Any, arguments: dict[str, Any] | None) -> None:
    guarded = idempotent(plain) if arguments is None else idempotent(**arguments)(plain)

    assert guarded.__name__ == plain.__name__
    assert guarded.__doc__ == plain.__doc__
    assert guarded.__wrapped__ is plain
    assert inspect.iscoroutinefunction(guarded) == inspect.iscoroutinefunction(plain)
    assert guarded.idempotency.overrides == (arguments or {})
    assert guarded.idempotency.store == "default"
    assert not hasattr(plain, "idempotency")
    assert not hasattr(plain, "_non_atomic_requests")


def test_R18_declared_is_what_checks_can_read() -> None:
    declared = idempotent(store="memory", lease=5, keep="stripe")(view).idempotency  # type: ignore[attr-defined]

    assert declared.store == "memory"
    assert declared.policy().lease == timedelta(seconds=5)
    assert declared.http_policy().keep == "stripe"


def test_R83_every_guarded_view_is_exempt_from_djangos_own_transactions() -> None:
    for kind in GUARDED:
        guarded: Any = resolve(f"/{kind}/", "tests.unit.views.urls").func
        marked: Any = getattr(guarded, "_non_atomic_requests", set())

        assert [alias in marked for alias in connections] == [kind != "below-api-view"] * 2, kind
    assert GUARDED["class"].idempotency.overrides == {}  # as_view() copies what is on dispatch


def test_R18_non_atomic_requests_of_the_project_stays_known() -> None:
    from django_idempotency.http.atomic_requests import exempt

    def own(request: HttpRequest) -> HttpResponse:  # Django marks the function itself
        return HttpResponse("yes")

    both = idempotent(transaction.non_atomic_requests(using="other")(own))

    assert exempt(both) == {"other"}
    assert "default" in both._non_atomic_requests  # type: ignore[attr-defined]


def twice(view: Any, rf: RequestFactory) -> list[bool]:
    def post() -> HttpRequest:
        return rf.post("/", headers={"Idempotency-Key": "k"}, content_type="text/plain")

    return [replayed(view(post())) for _ in range(2)]


@pytest.mark.parametrize("other", [never_cache, require_POST, csrf_exempt])
def test_R18_other_decorators_of_plain_views(rf: RequestFactory, other: Any) -> None:
    """Below it and above."""
    own = idempotent(scope=ANYONE)
    for decorated in (own(other(view)), other(own(view))):
        IdempotencyRecord.objects.all().delete()
        assert twice(decorated, rf) == [False, True]
        assert decorated.idempotency.overrides == {"scope": ANYONE}


@pytest.mark.parametrize(
    "decorators",
    [[never_cache, idempotent], [idempotent, csrf_exempt]],
    ids=["below never_cache", "above csrf_exempt"],
)
def test_R18_several_decorators_of_a_class_view(
    rf: RequestFactory, policy: SetPolicy, decorators: list[Any]
) -> None:
    policy(HTTP={"SCOPE": ANYONE})

    @method_decorator(decorators, name="dispatch")
    class Several(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("yes")

    decorated: Any = Several.as_view()

    assert twice(decorated, rf) == [False, True]
    assert "default" in decorated._non_atomic_requests


def test_R18_csrf_exempt_below_it_on_an_async_class_view(
    rf: RequestFactory, policy: SetPolicy
) -> None:
    policy(HTTP={"SCOPE": ANYONE})

    @method_decorator([idempotent, csrf_exempt], name="dispatch")
    class Several(View):
        async def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("yes")

    coroutine: Any = Several.as_view()

    assert twice(async_to_sync(coroutine), rf) == [False, True]


def test_R18_arguments_of_the_decorator_come_before_the_alias(
    rf: RequestFactory, policy: SetPolicy
) -> None:
    policy(HTTP={"REQUIRED": True, "HEADER": "Other-Key", "SCOPE": ANYONE})
    guarded = idempotent(required=False, header="My-Key")(view)

    assert guarded(rf.post("/")).content == b"yes"
    assert problem(guarded(rf.post("/", headers={"My-Key": ""}))) == (
        400,
        "idempotency_key_invalid",
    )


# What it refuses.


def test_R18_class_is_refused_with_what_to_write() -> None:
    write = r"class Checkout\..*@method_decorator\(idempotent\(\.\.\.\), name=\"dispatch\"\)"
    with pytest.raises(TypeError, match=write):
        idempotent(Checkout)


class Checkout:
    """What somebody may try to decorate from outside."""

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


def test_R18_method_is_refused_with_what_to_write() -> None:
    for decorate in (idempotent, idempotent(required=True)):
        with pytest.raises(
            TypeError, match=r"method Checkout\.post\..*name=\"post\"\) on the class"
        ):
            decorate(Checkout.post)
    with pytest.raises(TypeError, match="method"):

        class Local(View):
            @idempotent
            def post(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse()


def test_R18_argument_that_is_none_is_refused_with_what_to_write() -> None:
    unknown = {"requird": "required", "Required": "required", "leas": "lease", "keeps": "keep"}
    for name, nearest in unknown.items():
        with pytest.raises(UnknownField, match=rf"'{name}'.* Did you mean '{nearest}'\?") as raised:
            idempotent(**{name: True})  # type: ignore[call-overload]
        assert isinstance(raised.value, TypeError)
    given: Any
    for given, write in [("required", "required=True"), ("lease", r"lease=\.\.\."), (30, "req")]:
        with pytest.raises(TypeError, match=rf"Write @idempotent\({write}"):
            idempotent(given)


def test_R18_callable_of_the_wrong_arity_is_refused() -> None:
    wrong: dict[str, Any] = {
        "scope": lambda: "all",
        "fingerprint": lambda request, body: b"",
        "key_validator": lambda: None,
        "keep": lambda response: "keep",
        "replay_check": lambda request: True,
        "error_renderer": lambda request: None,
        "deadline": lambda context: 1,
    }
    for field, function in wrong.items():
        with pytest.raises(TypeError, match=f"{field} must take .*<lambda>"):
            idempotent(**{field: function})  # type: ignore[call-overload]


def test_R18_decorators_between_it_and_api_view_are_refused() -> None:
    @api_view(["POST"])
    def endpoint(request: Any) -> Response:
        return Response()

    with pytest.raises(TypeError, match=r"directly above @api_view of endpoint"):
        idempotent(never_cache(endpoint))


def test_R18_decorators_between_it_and_a_view_with_the_mixin_are_refused() -> None:
    class Mixed(IdempotencyMixin, APIView):
        pass

    with pytest.raises(TypeError, match=r"directly above .* of Mixed"):
        idempotent(never_cache(Mixed.as_view()))


# Above and below @api_view.

ORDERS = ("above-api-view", "below-api-view")


@pytest.mark.parametrize("order", ["plain", *ORDERS])
def test_R18_lease_is_on_the_request(rf: RequestFactory, order: str) -> None:
    """None without a key and where nothing is guarded."""
    seen: list[Any] = []

    def looking(request: Any) -> Any:
        seen.append(request.idempotency)
        return HttpResponse() if order == "plain" else Response()

    own, drf = idempotent(scope=ANYONE), api_view(["GET", "POST"])
    looked: Any = {
        "plain": own,
        "above-api-view": lambda view: own(drf(view)),
        "below-api-view": lambda view: drf(own(view)),
    }[order](looking)
    looked(rf.get("/", headers={"Idempotency-Key": "k"}))
    looked(rf.post("/"))
    looked(rf.post("/", headers={"Idempotency-Key": "k"}))

    assert seen[:2] == [None, None]
    assert seen[2].record_id == IdempotencyRecord.objects.get().pk


@pytest.fixture
def atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATOMIC_REQUESTS is on."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.mark.parametrize("kind", ORDERS)
def test_R57_with_atomic_requests_success_is_kept_in_both_orders(
    kind: str, atomic: None, runs: list[str]
) -> None:
    api = api_for("wsgi", f"/{kind}/")

    assert [replayed(api()) for _ in range(2)] == [False, True]
    assert len(runs) == Effect.objects.count() == 1


def test_R57_below_api_view_atomic_requests_make_it_single(
    atomic: None, settings: Any, runs: list[str]
) -> None:
    """In Django's transaction: nothing is seen before its COMMIT; a raised answer is not kept."""
    api = api_for("wsgi", "/below-api-view/")
    api.client.raise_request_exception = False

    api.then("missing")
    api.then("boom")

    assert not IdempotencyRecord.objects.exists()
    assert not Effect.objects.exists()
    assert len(runs) == 2


@pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)
def test_R18_below_api_view_refuses_what_it_cannot_keep(
    atomic: None, mode: str, runs: list[str]
) -> None:
    """A mode that commits on its own, asked for by name, in Django's own transaction."""
    with pytest.raises(RuntimeError, match="a transaction is already open"):
        api_for("wsgi", "/below-api-view/")()

    assert runs == []


@pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)
def test_R83_above_api_view_atomic_requests_are_the_guards(
    atomic: None, mode: str, runs: list[str]
) -> None:
    api: Api = api_for("wsgi", "/above-api-view/")

    api.then("missing")

    assert IdempotencyRecord.objects.get().state == "RELEASED"
    assert not Effect.objects.exists()
