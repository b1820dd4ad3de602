"""Steps behind every kind of view: what a request of ``transaction="steps"`` needs, and leaves."""
# mypy: ignore-errors

from __future__ import annotations

import json
from contextlib import suppress
from unittest.mock import Mock
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.core.checks import run_checks
from django.db import connection
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from ninja import NinjaAPI
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

import django_idempotency as idempotency
from django_idempotency import StoreError, Uncertain, journal
from django_idempotency.contrib.ninja import idempotent as idempotent_operation
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import IdempotencyViewMixin, idempotent
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.http.plans import Declared, ViewPlan, declared_on
from django_idempotency.models import IdempotencyRecord
from django_idempotency.operators.guarded import guarded, lines
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import ANYONE
from tests.unit.views.conftest import GUARD, USERS, api_for

pytestmark = pytest.mark.django_db(transaction=True)

#: The keys of the calls that were made; what the work does then, by the name of an ending.
charges = []
steps = idempotent(transaction="steps")


def create_order(name):
    assert connection.in_atomic_block
    return {"id": Effect.objects.create(name=name).pk}


def charge(key):
    assert not connection.in_atomic_block
    charges.append(key)
    return "ch_1"


def uncertain(request):
    return request.headers.get("X-Uncertain", "repeat")


def ending(then):
    if then == "raises":
        raise ArithmeticError
    if then == "not found":
        raise NotFound
    status = int(then or 201)
    return JsonResponse({"effects": Effect.objects.count()}, status=status)


def checkout(request):
    """Be the work of each view; header fields say how it is to end, and what is uncertain."""
    assert not connection.in_atomic_block
    lease = request.idempotency
    lease.step("order", create_order, "order")
    assert not connection.in_atomic_block
    idempotency.external("charge", charge, uncertain=uncertain(request))
    return ending(request.headers.get("X-Then"))


async def acheckout(request):
    await request.idempotency.astep("order", create_order, "order")

    async def acharge(key):
        return charge(key)

    await idempotency.aexternal("charge", acharge, uncertain=uncertain(request))
    return await sync_to_async(ending)(request.headers.get("X-Then"))


def plain(request):
    return HttpResponse("read") if request.method == "GET" else checkout(request)


@steps
def function(request):
    return plain(request)


@steps
async def async_function(request):
    return HttpResponse("read") if request.method == "GET" else await acheckout(request)


@method_decorator(steps, name="dispatch")
class Decorated(View):
    def get(self, request):
        return HttpResponse("read" if not connection.in_atomic_block else "within")

    def post(self, request):
        return checkout(request)


@method_decorator(steps, name="dispatch")
class AsyncClass(View):
    async def get(self, request):
        return HttpResponse("read")

    async def post(self, request):
        return await acheckout(request)


class Mixed(IdempotencyViewMixin, View):
    idempotency_transaction = "steps"

    def post(self, request):
        return checkout(request)


@steps
@api_view(["POST"])
def above_api_view(request):
    return checkout(request)


@api_view(["POST"])
@steps
def below_api_view(request):
    return checkout(request)


class DRF(IdempotencyMixin, APIView):
    idempotency_transaction = "steps"

    def post(self, request):
        return checkout(request)


class Set(IdempotencyMixin, ViewSet):
    idempotency_transaction = "steps"
    idempotency_actions = ("create",)

    def create(self, request):
        return checkout(request)

    def update(self, request):
        return HttpResponse("within" if connection.in_atomic_block else "read")


api_of_ninja = NinjaAPI(urls_namespace="steps")


@api_of_ninja.post("/operation")
@idempotent_operation(transaction="steps", scope=ANYONE)
def operation(request):
    return checkout(request)


@idempotent(transaction="steps", fail_open=True, required=False)
def fails_open(request):
    return checkout(request)


urlpatterns = [
    path("function/", function),
    path("async-function/", async_function),
    path("decorated/", Decorated.as_view()),
    path("mixed/", Mixed.as_view()),
    path("above-api-view/", above_api_view),
    path("below-api-view/", below_api_view),
    path("drf/", DRF.as_view()),
    path("set/", Set.as_view({"post": "create", "put": "update"})),
    path("ninja/", api_of_ninja.urls),
    path("unguarded/", checkout),
    path("async-unguarded/", acheckout),
    path("fails-open/", fails_open),
    path("async-class/", AsyncClass.as_view()),
]

KINDS = ["function", "async-function", "decorated", "mixed", "above-api-view", "below-api-view"]
KINDS += ["drf", "set", "ninja/operation"]


@pytest.fixture(autouse=True)
def urls(settings, project):
    settings.ROOT_URLCONF = __name__
    charges.clear()


@pytest.fixture(params=[False, True], ids=["decorated", "middleware"])
def below_middleware(request, settings):
    """Without and with the middleware, which leaves a view that is guarded alone."""
    settings.MIDDLEWARE = [USERS, GUARD] if request.param else [USERS]


def client(kind, **keywords):
    slash = "" if kind.startswith("ninja") else "/"
    stack = "asgi" if kind.startswith("async") else "wsgi"
    return api_for(stack, f"/{kind}{slash}", **keywords)


def then(api, end, **keywords):
    return api(headers={"X-Then": end}, **keywords)


def record():
    return IdempotencyRecord.objects.get()


every_kind = pytest.mark.parametrize("kind", KINDS)


#: Where Django does not see the mark of the guard, and opens its own transaction around it.
UNSEEN = ["below-api-view", "ninja/operation"]


@every_kind
@pytest.mark.usefixtures("below_middleware")
def test_T1_T17_a_retry_goes_on_behind_the_steps(kind, atomic_requests):
    api = client(kind, raises=False)
    if atomic_requests and kind in UNSEEN:
        assert api().status_code == 500  # TransactionOpen
        assert (charges, IdempotencyRecord.objects.count()) == ([], 0)
        return

    assert then(api, "raises").status_code == 500
    assert [*Effect.objects.values_list("name", flat=True)] == ["order"]
    first = api()
    again = api()

    assert (first.status_code, json.loads(first.content)) == (201, {"effects": 1})
    assert (again.content, replayed(first), replayed(again)) == (first.content, False, True)
    assert len(charges) == 1
    assert (record().state, record().steps, record().attempts) == ("COMPLETED", None, 2)


class StepsMiddleware(IdempotencyMiddleware):
    """Guards views with steps: what no alias of IDEMPOTENCY can say."""

    @classmethod
    def declared(cls):
        return Declared(cls.store, {"transaction": "steps"}, methods=frozenset({"POST"}))


@pytest.mark.parametrize("kind", ["unguarded", "async-unguarded"])
def test_T17_a_middleware_of_the_project_gives_steps_to_views_without_a_guard(
    kind, atomic_requests, settings
):
    settings.MIDDLEWARE = [USERS, f"{__name__}.StepsMiddleware"]
    api = client(kind, raises=False)
    assert problem(api(key=None)) == (400, "idempotency_key_missing")
    assert then(api, "raises").status_code == 500
    assert (api().status_code, Effect.objects.count(), len(charges)) == (201, 1, 1)


@every_kind
def test_T17_R1_a_key_is_required(kind):
    api = client(kind)
    assert problem(api(key=None)) == (400, "idempotency_key_missing")
    assert charges == []


@pytest.mark.usefixtures("store_is_down")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_T17_R61_no_store_opens_a_view_with_steps():
    assert problem(client("fails-open")()) == (503, "store_unavailable")
    assert problem(client("fails-open")(key=None)) == (400, "idempotency_key_missing")


@every_kind
@pytest.mark.parametrize(("end", "status"), [("not found", 404), ("400", 400)])
def test_T11_what_a_refusal_would_release_is_failed_after_a_step(kind, end, status):
    if end == "not found" and kind in ("function", "async-function", "decorated", "mixed"):
        end = "404"
    if kind.startswith("ninja"):
        end = str(status)
    api = client(kind)
    assert then(api, end).status_code == status
    assert record().state == State.FAILED.value
    assert [*journal.read(record().steps).results] == ["order", "charge"]
    assert problem(api({"name": "another"})) == (422, "idempotency_key_reused")
    assert (api().status_code, Effect.objects.count(), len(charges)) == (201, 1, 1)


@pytest.mark.usefixtures("atomic")
def test_T17_ATOMIC_REQUESTS_stay_with_requests_that_have_no_steps():
    """A coroutine can have none, so that it has none on any method."""
    api = api_for("wsgi", "/decorated/")
    assert api(method="GET", key=None).content == b"within"
    assert api_for("wsgi", "/set/")(method="PUT", key=None).content == b"within"
    for path_ in ("/async-function/", "/async-class/"):
        assert api_for("asgi", path_)(method="GET", key=None).content == b"read"
    assert api_for("asgi", "/async-class/")().status_code == 201
    found = [it.obj for it in run_checks() if it.id == "django_idempotency.E017"]
    assert len(found) == len(UNSEEN)
    assert not [it for it in run_checks() if it.id == "django_idempotency.E015"]


@pytest.mark.parametrize("lost", ["fence", "note"])
def test_P12_the_store_is_down_at_a_step(lost, monkeypatch, caplog):
    def down(self, *args, **keywords):
        raise StoreError("down", unreachable=True)

    api = client("function")
    with monkeypatch.context() as patched:
        patched.setattr(DatabaseStore, lost, down)
        assert problem(api()) == (503, "store_unavailable")
    assert (Effect.objects.count(), record().state, record().steps) == (0, "FAILED", None)
    assert "store unavailable" in caplog.text
    assert (api().status_code, Effect.objects.count()) == (201, 1)


@pytest.mark.parametrize("kind", ["function", "drf", "async-function"])
def test_P10_a_step_that_was_taken_over_answers_lease_lost(kind, monkeypatch):
    api, note = client(kind), DatabaseStore.note

    def taken(self, lease, entry, **keywords):
        """Note as the owner of a lease that another attempt has taken over."""
        lease.token = uuid4()
        note(self, lease, entry, **keywords)

    monkeypatch.setattr(DatabaseStore, "note", taken)
    assert problem(api()) == (409, "lease_lost")
    assert (Effect.objects.count(), charges) == (0, [])


@pytest.mark.parametrize("kind", ["function", "drf", "async-function"])
def test_T18_steps_that_were_swapped_in_the_table_are_503_and_nothing_runs(kind, settings, caplog):
    alias = {**settings.IDEMPOTENCY["default"], "ENCRYPTION_KEYS": ["A" * 43]}
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "default": alias}
    api = client(kind, raises=False)
    assert then(api, "raises").status_code == 500
    whole = record().steps
    order, call = journal.read(whole).results.values()
    swapped = journal.entry("order", call) + journal.entry("charge", order)
    IdempotencyRecord.objects.update(steps=swapped)

    assert problem(api()) == (503, "store_unavailable")

    assert (Effect.objects.count(), len(charges), record().steps) == (1, 1, swapped)
    assert "damaged: it was not encrypted for this record" in caplog.text
    IdempotencyRecord.objects.update(steps=whole)
    assert (api().status_code, Effect.objects.count(), len(charges)) == (201, 1, 1)


@every_kind
def test_T12_an_uncertain_call_is_answered_with_stale_until_an_operator_decides(kind, monkeypatch):
    api, refuse = client(kind, raises=False), {"X-Uncertain": "refuse"}
    with monkeypatch.context() as patched:
        patched.setattr(f"{__name__}.charge", Mock(side_effect=TimeoutError))
        assert api(headers=refuse).status_code == 500
    for _ in range(2):
        answer = api(headers=refuse)
        assert problem(answer) == (409, "stale")
        members = json.loads(answer.content)
        assert (members["retryable"], members["safe_new_key"]) == (False, False)
        assert "An operator has to decide" in members["detail"]
        assert "Retry-After" not in answer.headers
        assert record().state == "FAILED"
        assert journal.read(record().steps).uncertain == ("charge",)
    assert (charges, Effect.objects.count()) == ([], 1)
    assert api().status_code == 201  # its code says now that the call may be repeated


@every_kind
def test_S13_an_error_that_would_be_kept_ends_no_question(kind, monkeypatch, settings):
    settings.IDEMPOTENCY = {"default": {"HTTP": {"KEEP": "stripe"}}}
    api, refuse = client(kind, raises=False), {"X-Uncertain": "refuse"}
    with monkeypatch.context() as patched:
        patched.setattr(f"{__name__}.charge", Mock(side_effect=TimeoutError))
        assert api(headers=refuse).status_code == 500
    assert record().state == "FAILED"
    assert record().expires_at is None
    assert problem(api(headers=refuse)) == (409, "stale")


def store_down(lease):
    raise StoreError("of another call")


def uncertain_call(lease):
    with suppress(TimeoutError):
        lease.external("inner", Mock(side_effect=TimeoutError), uncertain="refuse")
    lease.external("inner", charge, uncertain="refuse")


@pytest.mark.parametrize("kind", ["function", "drf", "async-function"])
@pytest.mark.parametrize(("work", "error"), [(store_down, StoreError), (uncertain_call, Uncertain)])
def test_a_step_within_works_other_call_is_no_answer_of_this_key(kind, work, error, monkeypatch):
    """An error of another operation inside of an external is the work's own: a 500."""

    def inner(key):
        called = {"key": "inner", "scope": "s", "store": "memory", "transaction": "steps"}
        return idempotency.run(work, **called).result

    with monkeypatch.context() as patched:
        patched.setattr(f"{__name__}.charge", inner)
        with pytest.raises(error):
            client(kind)()
    assert (record().state, journal.read(record().steps).uncertain) == ("FAILED", ())


def test_openapi_and_the_policy_say_that_a_key_is_required():
    plan = declared_on(fails_open)[-1].plan()
    assert isinstance(plan, ViewPlan)
    assert (plan.http_policy.required, plan.http_policy.fail_open) == (True, False)
    schema = api_of_ninja.get_openapi_schema()
    [parameters] = [it["post"]["parameters"] for it in schema["paths"].values()]
    assert [it["required"] for it in parameters if it["name"] == "Idempotency-Key"] == [True]


def test_T11_the_policy_says_until_when_a_refusal_frees_the_key():
    [facts] = [it for it in guarded() if it["name"].endswith(".fails_open")]
    [line] = [it for it in lines(facts) if "frees key" in it]
    assert line.endswith(", before its first step")
