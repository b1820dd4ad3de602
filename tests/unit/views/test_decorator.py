"""R18: `@idempotent` itself, on what it stands, what it says of a view, and what it refuses."""

from __future__ import annotations

import inspect
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.http import HttpResponse
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
from django_idempotency.http.atomic_requests import exempt
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UnknownField
from tests.app.models import Effect
from tests.unit.http.api import replayed
from tests.unit.views.conftest import api_of
from tests.unit.views.urls import GUARDED

pytestmark = pytest.mark.django_db(transaction=True)

ANYONE = "django_idempotency.http.scopes.anyone"
own = idempotent(scope=ANYONE)


def view(request):
    """Say yes."""
    return HttpResponse("yes")


async def async_view(request):
    """Say yes."""
    return HttpResponse("yes")


# What it makes.


@pytest.mark.parametrize("arguments", [None, {}, {"keep": "stripe", "lease": 5}])
@pytest.mark.parametrize("plain", [view, async_view])
def test_R18_bare_and_with_arguments(plain, arguments):
    guarded = idempotent(plain) if arguments is None else idempotent(**arguments)(plain)

    assert (guarded.__name__, guarded.__doc__) == (plain.__name__, plain.__doc__)
    assert guarded.__wrapped__ is plain
    assert inspect.iscoroutinefunction(guarded) == inspect.iscoroutinefunction(plain)
    assert not hasattr(plain, "idempotency")
    assert not hasattr(plain, "_non_atomic_requests")
    declared = guarded.idempotency
    assert (declared.overrides, declared.store) == (arguments or {}, "default")
    assert declared.plan().policy.lease == timedelta(seconds=5 if arguments else 60)
    assert declared.plan().http_policy.keep == ("stripe" if arguments else "default")


def test_R83_every_guarded_view_is_exempt_from_djangos_own_transactions():
    for kind in GUARDED:
        marked = getattr(resolve(f"/{kind}/").func, "_non_atomic_requests", set())

        assert [alias in marked for alias in connections] == [kind != "below-api-view"] * 2, kind
    assert GUARDED["class"].idempotency.overrides == {}  # as_view() copies what is on dispatch


def test_R18_non_atomic_requests_of_the_project_stays_known():
    both = idempotent(transaction.non_atomic_requests(using="other")(lambda request: None))

    assert exempt(both) == {"other"}
    assert "default" in both._non_atomic_requests


def twice(view, rf):
    def post():
        return rf.post("/", headers={"Idempotency-Key": "k"}, content_type="text/plain")

    return [replayed(view(post())) for _ in range(2)]


@pytest.mark.parametrize("other", [never_cache, require_POST, csrf_exempt])
def test_R18_other_decorators_of_plain_views(rf, other):
    """Below it and above."""
    for decorated in (own(other(view)), other(own(view))):
        IdempotencyRecord.objects.all().delete()
        assert twice(decorated, rf) == [False, True]
        assert decorated.idempotency.overrides == {"scope": ANYONE}


class Checkout(View):
    def post(self, request):
        return HttpResponse()


class AsyncCheckout(View):
    async def post(self, request):
        return HttpResponse()


@pytest.mark.parametrize("decorators", [[never_cache, own], [own, csrf_exempt]])
@pytest.mark.parametrize("view", [Checkout, AsyncCheckout])
def test_R18_several_decorators_of_a_class_view(rf, view, decorators):
    guarded = method_decorator(decorators, name="dispatch")(type("Several", (view,), {})).as_view()

    assert "default" in guarded._non_atomic_requests
    assert twice(guarded if view is Checkout else async_to_sync(guarded), rf) == [False, True]


# What it refuses, and what to write.


class Mixed(IdempotencyMixin, APIView):
    pass


@pytest.mark.parametrize(
    ("decorate", "view", "said"),
    [
        (own, Checkout, r"class Checkout\..*@method_decorator\(idempotent\(\.\.\.\), name=\"disp"),
        (own, Checkout.post, r"method Checkout\.post\..*name=\"post\"\) on the class"),
        (idempotent, Checkout.post, r"method Checkout\.post\..*name=\"post\"\) on the class"),
        (own, never_cache(api_view(["POST"])(view)), r"directly above @api_view of view"),
        (own, never_cache(Mixed.as_view()), r"directly above .* of Mixed"),
        (idempotent, "required", r"Write @idempotent\(required=True"),
        (idempotent, "lease", r"Write @idempotent\(lease=\.\.\."),
        (idempotent, 30, r"Write @idempotent\(req"),
    ],
)
def test_R18_what_is_no_view_is_refused_with_what_to_write(decorate, view, said):
    with pytest.raises(TypeError, match=said):
        decorate(view)


def test_R18_method_in_the_body_of_its_class_is_refused():
    with pytest.raises(TypeError, match="method"):

        class Local(View):
            @idempotent
            def post(self, request):
                return HttpResponse()


def test_R18_unknown_argument_is_refused_with_the_nearest():
    unknown = {"requird": "required", "Required": "required", "leas": "lease", "keeps": "keep"}
    for name, nearest in unknown.items():
        with pytest.raises(UnknownField, match=rf"'{name}'.* Did you mean '{nearest}'\?"):
            idempotent(**{name: True})
    assert issubclass(UnknownField, TypeError)


def test_R18_callable_of_the_wrong_arity_is_refused():
    wrong = {
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
            idempotent(**{field: function})


# Above and below @api_view.


@pytest.mark.parametrize("order", ["plain", "above", "below"])
def test_R18_lease_is_on_the_request(rf, order):
    """None without a key and where nothing is guarded."""
    seen = []

    def looking(request):
        seen.append(request.idempotency)
        return HttpResponse() if order == "plain" else Response()

    drf = api_view(["GET", "POST"])
    looked = {"plain": own, "above": lambda v: own(drf(v)), "below": lambda v: drf(own(v))}[order](
        looking
    )
    looked(rf.get("/", headers={"Idempotency-Key": "k"}))
    looked(rf.post("/"))
    looked(rf.post("/", headers={"Idempotency-Key": "k"}))

    assert seen[:2] == [None, None]
    assert seen[2].record_id == IdempotencyRecord.objects.get().pk


@pytest.fixture
def atomic(monkeypatch):
    """ATOMIC_REQUESTS is on."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.mark.parametrize("kind", ["above-api-view", "below-api-view"])
def test_R57_with_atomic_requests_success_is_kept_in_both_orders_and_below_it_no_failure(
    kind, atomic, runs
):
    """There in Django's transaction: a raised answer is not kept."""
    api = api_of(kind, raises=False)

    assert [replayed(api()) for _ in range(2)] == [False, True]
    for then in ("missing", "boom"):
        api.then(then, key=then)
    assert len(runs) == 3
    assert Effect.objects.count() == 1
    assert IdempotencyRecord.objects.count() == (1 if "below" in kind else 3)


@pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)
def test_R18_R83_atomic_requests_are_the_guards_above_api_view_and_refused_below(
    atomic, mode, runs
):
    """Below it, a mode that commits on its own stands in Django's own transaction."""
    with pytest.raises(RuntimeError, match="a transaction is already open"):
        api_of("below-api-view")()
    assert runs == []

    api_of("above-api-view").then("missing")

    assert IdempotencyRecord.objects.get().state == "RELEASED"
    assert not Effect.objects.exists()
