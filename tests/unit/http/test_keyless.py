"""Section K, R90, R96: a key changes nothing about what a request leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, connection, connections
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.views import APIView

from django_idempotency import WorkRolledBack
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.exceptions import InProgress
from django_idempotency.http import IdempotencyViewMixin, idempotent
from django_idempotency.http.checks import check_middleware, check_views
from django_idempotency.http.problems import problem_response
from django_idempotency.policy import HTTPPolicy
from tests.app.models import Effect, Unique
from tests.unit.http.cases import name_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("anyone")]
GUARD = "django_idempotency.http.middleware.IdempotencyMiddleware"
KEYS = ("key-1", None)


def send(url: str, key: str | None, method: str = "POST") -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return Client().generic(method, url, headers=headers)


def work(then: int | None, request: Any) -> HttpResponse:
    """Answer with the status `then`, or raise what is answered with 403."""
    Effect.objects.create()
    if then is None:
        raise PermissionDenied
    return HttpResponse(status=then)


def mixin(then: int | None) -> Any:
    members = {"authentication_classes": [], "post": lambda self, request: work(then, request)}
    return type("Mixed", (IdempotencyMixin, APIView), members)


def decorator(then: int | None, **policy: Any) -> Any:
    return idempotent(**policy)(partial(work, then))


def coroutine(then: int | None) -> Any:
    return idempotent(sync_to_async(partial(work, then)))


def fail_teapots(response: Any, exception: BaseException | None) -> str:
    return "fail" if response.status_code == 418 else "keep"


def judged(then: int | None) -> Any:
    return decorator(then, keep=fail_teapots)


def lenient(then: int | None) -> Any:
    return decorator(then, keep="success")


def busy(then: int | None) -> Any:
    """Work that answers with what a guard within it says of another key."""

    def ask(request: HttpRequest) -> HttpResponse:
        Effect.objects.create()
        return problem_response(InProgress(), request, HTTPPolicy())

    return idempotent(keep=fail_teapots)(ask)


class Work(NamedTuple):
    """Work behind a guard, the status that it returns or None, and whether it commits."""

    guarded: Callable[[int | None], Any]
    then: int | None
    commits: bool
    transaction: str | None = None
    atomic_requests: bool = False


@pytest.mark.parametrize(
    "case",
    [
        Work(mixin, None, commits=False),
        Work(mixin, None, commits=True, transaction="separate"),
        Work(mixin, None, commits=False, transaction="separate", atomic_requests=True),
        Work(decorator, 403, commits=True),
        Work(decorator, None, commits=False),
        Work(decorator, 503, commits=False),
        Work(judged, 418, commits=False),
        Work(judged, 400, commits=True),
        Work(lenient, 403, commits=True),
        Work(busy, 409, commits=True),
        Work(coroutine, 403, commits=True, transaction="joined"),
        Work(coroutine, 503, commits=False, transaction="joined"),
        Work(coroutine, None, commits=False, transaction="joined"),
        Work(coroutine, None, commits=True, transaction="separate"),
    ],
    ids=name_of,
)
def test_R57_R90_status_and_verdict_decide_about_the_work_with_and_without_a_key(
    mount, policy, monkeypatch, case
):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", case.atomic_requests)
    policy(TRANSACTION=case.transaction)
    url = mount(case.guarded(case.then))
    for key in KEYS:
        assert send(url, key).status_code == (case.then or 403)
        assert Effect.objects.exists() == case.commits, key
        Effect.objects.all().delete()


def test_R58_view_that_returns_nothing_is_told_of_where_no_url_has_it(rf):
    with pytest.raises(ValueError, match=r"^The view didn't return an HttpResponse"):
        idempotent(lambda request: None)(rf.post("/"))


@pytest.mark.parametrize("key", KEYS)
def test_R58_exception_is_answered_once(mount, key):
    answered = []

    class Counting(mixin(None)):
        def handle_exception(self, error):
            answered.append(error)
            return super().handle_exception(error)

    assert send(mount(Counting), key).status_code == 403
    assert len(answered) == 1


@pytest.mark.parametrize(
    ("atomic_requests", "chosen", "opened"),
    [(False, None, False), (False, "joined", True), (True, None, True)],
    indirect=["atomic_requests"],
)
def test_R90_middleware_opens_no_transaction_of_its_own(
    mount, policy, settings, atomic_requests, chosen, opened
):
    """The record is written in the one that there is."""
    settings.MIDDLEWARE = [GUARD]
    policy(TRANSACTION=chosen)
    url = mount(tells_sync)
    for key in KEYS:
        assert send(url, key).content == str(opened).encode(), key
    mode = lambda request: HttpResponse(request.idempotency.request.transaction)  # noqa: E731
    told = send(mount(mode, name="mode"), "key-2").content
    assert told == (b"joined" if opened else b"separate")


def test_R90_guard_within_leaves_a_request_without_a_key_to_the_one_around(mount, policy):
    """An explicit "joined" cannot be opened within the one that is open."""
    policy(TRANSACTION="joined")
    members = {"authentication_classes": [], "post": lambda self, r: idempotent(tells_sync)(r)}
    url = mount(type("Nested", (IdempotencyMixin, APIView), members))
    assert send(url, None).content == b"True"


# R96: a guarded coroutine view does not lose its ATOMIC_REQUESTS without a word.

DJANGO_SAYS = "You cannot use ATOMIC_REQUESTS with async views"


def tells_sync(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(connection.in_atomic_block))


async def tells(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(tells_sync)(request)


@non_atomic_requests
async def exempt(request: HttpRequest) -> HttpResponse:
    return await tells(request)


class AsyncClass(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return await tells(request)

    post = get


COROUTINES: dict[str, Callable[..., Any]] = {
    "function": lambda **policy: idempotent(**policy)(tells),
    "class": lambda **policy: method_decorator(idempotent(**policy), name="dispatch")(
        type("Decorated", (AsyncClass,), {})
    ),
    "mixin": lambda **policy: type(
        "Mixed",
        (IdempotencyViewMixin, AsyncClass),
        {f"idempotency_{name}": value for name, value in policy.items()},
    ),
}


@pytest.mark.parametrize(("method", "key"), [("POST", "a-key"), ("POST", None), ("GET", None)])
@pytest.mark.parametrize("kind", COROUTINES)
def test_R96_guarded_coroutine_is_refused_as_django_refuses_it(mount, atomic, kind, method, key):
    with pytest.raises(RuntimeError, match=DJANGO_SAYS):
        send(mount(COROUTINES[kind]()), key, method)
    answer = send(mount(COROUTINES[kind](transaction="joined")), key, method)
    assert answer.content == b"True"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_R91_R96_what_is_not_guarded_ends_as_under_django_alone(mount, atomic, method):
    """A coroutine that swallows an error in its transaction is answered, and rolled back."""

    def swallow() -> None:
        with suppress(IntegrityError):
            for _ in range(2):
                Unique.objects.create(name="taken")

    async def view(request: HttpRequest) -> HttpResponse:
        await sync_to_async(swallow)()
        return HttpResponse("done")

    url = mount(idempotent(transaction="joined", methods=["POST"])(view))
    if method == "GET":
        assert send(url, None, method).content == b"done"
    else:
        with pytest.raises(WorkRolledBack):
            send(url, None, method)
    assert not Unique.objects.exists()


@pytest.mark.parametrize("post", [async_to_sync(AsyncClient().post), Client().post])
def test_R96_middleware(mount, settings, atomic, post):
    settings.MIDDLEWARE = [GUARD]
    with pytest.raises(RuntimeError, match=DJANGO_SAYS):
        post(mount(tells), headers={"Idempotency-Key": "a-key"})


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_R96_joined_gives_none_on_another_alias(mount, monkeypatch, atomic):
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)
    with pytest.raises(RuntimeError, match=DJANGO_SAYS):
        send(mount(idempotent(transaction="joined")(tells)), "a-key")


def test_R96_view_that_the_project_exempts_is_exempt(mount, atomic):
    assert send(mount(idempotent(exempt)), "a-key").content == b"False"


def test_R96_check_names_joined_where_something_is_lost(mount, atomic):
    mount(idempotent(exempt))
    for made in COROUTINES.values():
        mount(made(transaction="joined"))
    quiet = check_views()
    for made in COROUTINES.values():
        mount(made())
    errors = [found for found in check_views() if found not in quiet]
    assert [found.id for found in errors] == ["django_idempotency.E015"] * 3
    assert all("ATOMIC_REQUESTS" in found.msg for found in errors)
    assert all('transaction="joined"' in str(found.hint) for found in errors)


def test_R96_check_names_the_coroutines_that_the_middleware_guards(mount, settings, policy, atomic):
    settings.MIDDLEWARE = [GUARD]
    for view in (tells_sync, exempt, idempotent(transaction="joined")(tells)):
        mount(view)
    quiet = check_middleware()
    for _ in range(2):
        mount(tells)
    [error] = [found for found in check_middleware() if found not in quiet]
    assert (error.id, "ATOMIC_REQUESTS" in error.msg) == ("django_idempotency.E015", True)
    assert 'transaction="joined"' in str(error.hint)
    policy(TRANSACTION="joined")
    assert check_middleware() == quiet
