"""Section K, R96: a guarded coroutine view does not lose its ATOMIC_REQUESTS without a word."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency.http import idempotent
from django_idempotency.http.checks import check_views
from tests.unit.http.conftest import Mount, SetPolicy

pytestmark = pytest.mark.django_db(transaction=True)

GUARD = "django_idempotency.http.middleware.IdempotencyMiddleware"
DJANGO_SAYS = "You cannot use ATOMIC_REQUESTS with async views"
METHODS_AND_KEYS = [("POST", "a-key"), ("POST", None), ("GET", None)]


@pytest.fixture(autouse=True)
def project(policy: SetPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    policy(HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


async def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(await sync_to_async(lambda: connection.in_atomic_block)()))


@non_atomic_requests
async def exempt(request: HttpRequest) -> HttpResponse:
    return await view(request)


class AsyncClass(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return await view(request)

    post = get


def given(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key} if key else {}


def views(**policy: Any) -> dict[str, Any]:
    decorated = method_decorator(idempotent(**policy), name="dispatch")
    return {
        "function": idempotent(**policy)(view),
        "class": decorated(type("Decorated", (AsyncClass,), {})),
        "as_view()": idempotent(**policy)(AsyncClass.as_view()),
    }


def send(url: str, method: str, headers: dict[str, str]) -> str:
    async def main() -> str:
        try:
            response = await AsyncClient().generic(method, url, headers=headers)
        finally:
            await sync_to_async(connections.close_all)()
        return str(response.content.decode())

    return asyncio.run(main())


@pytest.mark.parametrize("kind", views())
@pytest.mark.parametrize(("method", "key"), METHODS_AND_KEYS)
def test_R96_guarded_coroutine_is_refused_as_django_refuses_it(
    mount: Mount, kind: str, method: str, key: str | None
) -> None:
    with pytest.raises(RuntimeError, match=DJANGO_SAYS):
        send(mount(views()[kind]), method, given(key))


@pytest.mark.parametrize("client", ["asgi", "wsgi"])
@pytest.mark.parametrize("key", ["a-key", None])
def test_R96_middleware(mount: Mount, settings: Any, client: str, key: str | None) -> None:
    settings.MIDDLEWARE = [GUARD]
    url = mount(view)

    post = partial(send, url, "POST") if client == "asgi" else partial(Client().post, url)

    with pytest.raises(RuntimeError, match=DJANGO_SAYS):
        post(headers=given(key))


@pytest.mark.parametrize("kind", views())
@pytest.mark.parametrize(("method", "key"), METHODS_AND_KEYS)
def test_R96_joined_gives_it_the_transaction(
    mount: Mount, kind: str, method: str, key: str | None
) -> None:
    assert send(mount(views(transaction="joined")[kind]), method, given(key)) == "True"


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_R96_joined_gives_none_on_another_alias(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)

    with pytest.raises(RuntimeError, match=DJANGO_SAYS):
        send(mount(idempotent(transaction="joined")(view)), "POST", given("a-key"))


@pytest.mark.parametrize(("method", "key"), METHODS_AND_KEYS)
def test_R96_view_that_the_project_exempts_is_exempt(
    mount: Mount, method: str, key: str | None
) -> None:
    assert send(mount(idempotent(exempt)), method, given(key)) == "False"


# The check.


@pytest.mark.parametrize("kind", views())
def test_R96_check_names_joined(mount: Mount, kind: str) -> None:
    mount(views()[kind])

    [error] = [found for found in check_views() if found.id == "django_idempotency.E015"]

    assert "ATOMIC_REQUESTS" in error.msg
    assert 'transaction="joined"' in str(error.hint)


@pytest.mark.parametrize(
    "quiet",
    [idempotent(transaction="joined")(view), idempotent(exempt)],
    ids=["joined", "exempt"],
)
def test_R96_check_is_silent_where_nothing_is_lost(mount: Mount, quiet: Any) -> None:
    mount(quiet)

    assert [found for found in check_views() if found.id == "django_idempotency.E015"] == []
