"""R18: `@idempotent` itself, on what it stands, what it says of a view, and what it refuses."""

from __future__ import annotations

import inspect
from datetime import timedelta
from functools import partial

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.urls import ResolverMatch, resolve
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.http.atomic_requests import exempt
from django_idempotency.http.plans import declared_on
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy, UnknownField, merge
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import ANYONE
from tests.unit.views.conftest import a_function, api_of
from tests.unit.views.urls import GUARDED, FreeDRF, free_function

pytestmark = pytest.mark.django_db(transaction=True)

own = idempotent(scope=ANYONE)


def view(request):
    """Say yes."""
    return HttpResponse("yes")


async def async_view(request):
    """Say yes."""
    return HttpResponse("yes")


# What it makes.


@pytest.mark.parametrize("plain", [view, async_view])
def test_R18_bare_and_with_arguments(plain):
    for arguments in ({}, {"keep": "stripe", "lease": 5}):
        guarded = idempotent(**arguments)(plain) if arguments else idempotent(plain)

        assert (guarded.__name__, guarded.__doc__) == (plain.__name__, plain.__doc__)
        assert guarded.__wrapped__ is plain
        assert inspect.iscoroutinefunction(guarded) == inspect.iscoroutinefunction(plain)
        assert declared_on(plain) == []
        assert not hasattr(plain, "_non_atomic_requests")
        [declared] = declared_on(guarded)
        assert (declared.overrides, declared.store) == (arguments, "default")
        assert declared.plan().policy.lease == timedelta(seconds=5 if arguments else 60)
        assert declared.plan().http_policy.keep == ("stripe" if arguments else "default")


def twice(view, rf):
    def post():
        return rf.post("/", headers={"Idempotency-Key": "k"}, content_type="text/plain")

    return [replayed(view(post())) for _ in range(2)]


def test_R18_other_decorators_of_plain_views_below_it_and_above(rf):
    for other in (never_cache, csrf_exempt):
        for decorated in (own(other(view)), other(own(view))):
            IdempotencyRecord.objects.all().delete()
            assert twice(decorated, rf) == [False, True]
            assert [it.overrides for it in declared_on(decorated)] == [{"scope": ANYONE}]


class Checkout(View):
    def post(self, request):
        return HttpResponse()


class AsyncCheckout(View):
    async def post(self, request):
        return HttpResponse()


@pytest.mark.parametrize(
    ("view", "decorators"), [(Checkout, [never_cache, own]), (AsyncCheckout, [own, csrf_exempt])]
)
def test_R18_several_decorators_of_a_class_view(rf, view, decorators):
    guarded = method_decorator(decorators, name="dispatch")(type("Several", (view,), {})).as_view()

    assert "default" in guarded._non_atomic_requests
    assert twice(guarded if view is Checkout else async_to_sync(guarded), rf) == [False, True]


# What it refuses, and what to write.


class Mixed(IdempotencyMixin, APIView):
    pass


REFUSED = [
    (own, Checkout, r"class Checkout\..*@method_decorator\(idempotent\(\.\.\.\), name=\"disp"),
    (own, Checkout.post, r"method Checkout\.post\..*name=\"post\"\) on the class"),
    (own, never_cache(api_view(["POST"])(view)), r"directly above @api_view of view"),
    (own, never_cache(Mixed.as_view()), r"directly above .* of Mixed"),
    (idempotent, "lease", r"Write @idempotent\(lease=\.\.\."),
    (idempotent, 30, r"Write @idempotent\(required=True"),
]
WRONG_ARITY = {
    "scope": lambda: "all",
    "fingerprint": lambda request, body: b"",
    "key_validator": lambda: None,
    "keep": lambda response: "keep",
    "replay_check": lambda request: True,
    "error_renderer": lambda request: None,
    "deadline": lambda context: 1,
}


def test_R18_what_is_no_view_or_no_argument_is_refused_with_what_to_write():
    for decorate, given, said in REFUSED:
        with pytest.raises(TypeError, match=said):
            decorate(given)
    for name, nearest in {"requird": "required", "Required": "required", "leas": "lease"}.items():
        with pytest.raises(UnknownField, match=rf"'{name}'.* Did you mean '{nearest}'\?"):
            idempotent(**{name: True})
    for field, function in WRONG_ARITY.items():
        with pytest.raises(TypeError, match=f"{field} must take .*<lambda>"):
            idempotent(**{field: function})


async def says_no(*arguments):
    """Whatever is asked: no, to who awaits it."""
    return False


class SaysNo:
    async def __call__(self, *arguments):
        return False


class Checked(IdempotencyMixin, FreeDRF):
    async def idempotency_replay_check(self, request, record):
        return False


def test_R34_coroutine_functions_of_a_policy_are_refused_with_what_to_write(rf):
    fields = ("scope", "fingerprint", "key_validator", "keep", "error_renderer", "replay_check")
    for name in fields:
        for value in (says_no, partial(says_no, 1), SaysNo()):
            [found] = HTTPPolicy(**{name: value}).problems()

            assert found.startswith(f"{name} must not be a coroutine function")
            assert "async_to_sync(" in found
        with pytest.raises(ValueError, match=name):
            merge(HTTPPolicy(), {name: value})
        assert HTTPPolicy(**{name: async_to_sync(says_no)}).problems() == []
    for guarded in (idempotent(replay_check=says_no)(free_function), Checked.as_view()):
        with pytest.raises(ValueError, match=r"^replay_check must not be a coroutine function"):
            guarded(rf.post("/", headers={"Idempotency-Key": "key-1"}))


@a_function
def test_R10_R34_awaitable_is_no_yes_and_what_async_to_sync_makes_of_it_is_awaited(api, policy):
    """Of a function that does not look like one that gives an awaitable, and by a dotted path."""
    api()
    for name, key in (("replay_check", "key-1"), ("key_validator", "key-2")):
        policy(HTTP={name.upper(): lambda *arguments: says_no()})
        with pytest.raises(TypeError, match=rf"^{name} must not return an awaitable"):
            api(key=key)
        policy(HTTP={name.upper(): None})
    policy(HTTP={"REPLAY_CHECK": f"{__name__}.says_no"})
    with pytest.raises(TypeError, match=r"^replay_check must not be a coroutine function"):
        api()
    policy(HTTP={"REPLAY_CHECK": async_to_sync(says_no)})

    assert problem(api()) == (403, "replay_refused")
    assert not replayed(api(key="key-2"))


# ATOMIC_REQUESTS: Django leaves its transactions to the guard.


def test_R83_every_guarded_view_is_exempt_from_djangos_own_transactions():
    for kind in GUARDED:
        marked = getattr(resolve(f"/{kind}/").func, "_non_atomic_requests", set())

        assert [alias in marked for alias in connections] == [kind != "below-api-view"] * 2, kind
    [declared] = declared_on(GUARDED["class"])  # as_view() copies what is on dispatch
    assert declared.overrides == {}
    both = idempotent(transaction.non_atomic_requests(using="other")(lambda request: None))
    assert exempt(both) == {"other"}  # non_atomic_requests of the project stays known


def test_R83_above_api_view_keeps_what_the_project_has_marked_below():
    """Decorators without a wrapper leave it on the view that ``@api_view`` made."""
    view = transaction.non_atomic_requests(using="other")(api_view(["POST"])(lambda request: None))
    view.of_the_project = True

    guarded = idempotent(view)

    assert guarded.of_the_project
    assert exempt(guarded) == {"other"}
    assert all(alias in guarded._non_atomic_requests for alias in connections)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_R83_R90_requests_without_a_key_have_a_transaction(rf, atomic_requests, method):
    seen = []

    def looking(request):
        seen.append(connection.in_atomic_block)
        return HttpResponse()

    idempotent(looking)(rf.generic(method, "/"))
    assert seen == [atomic_requests or method == "POST"]

    exempted = idempotent(transaction="separate", scope=ANYONE)(
        transaction.non_atomic_requests(looking)
    )
    request = rf.post("/", headers={"Idempotency-Key": "k"})
    request.resolver_match = ResolverMatch(exempted, (), {}, route="looking/")
    exempted(request)
    assert seen[1:] == [False]


def test_R2_a_field_without_a_value_is_no_field(rf, policy):
    """As a middleware leaves it that takes a field away."""
    policy(WAIT=1)

    def answer(request):
        return HttpResponse(str(request.idempotency is not None))

    guarded = idempotent(scope=ANYONE)(answer)
    assert guarded(rf.post("/", HTTP_IDEMPOTENCY_KEY=None)).content == b"False"
    request = rf.post("/", HTTP_IDEMPOTENCY_KEY='"key"', HTTP_PREFER=None)
    request.resolver_match = ResolverMatch(guarded, (), {}, route="answer/")
    assert guarded(request).content == b"True"


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


def test_R18_R83_atomic_requests_are_the_guards_above_api_view_and_refused_below(
    atomic, policy, runs
):
    """Below it, a mode that commits on its own stands in Django's own transaction."""
    policy(TRANSACTION="joined")
    with pytest.raises(RuntimeError, match="a transaction is already open"):
        api_of("below-api-view")()
    assert runs == []

    api_of("above-api-view").then("missing")

    assert IdempotencyRecord.objects.get().state == "RELEASED"
    assert not Effect.objects.exists()
