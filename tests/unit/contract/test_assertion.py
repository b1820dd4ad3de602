"""assert_idempotent: what it sends, what it returns, and what it says when answers differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client
from django.urls import path
from rest_framework.test import APIClient

from django_idempotency.http import idempotent
from django_idempotency.http.scopes import anyone
from django_idempotency.testing import assert_idempotent, override_store

RUNS: list[str] = []
#: What `fake` answers: the first time, and the second time.
FAKED: list[HttpResponse] = []


def pay(request: HttpRequest) -> HttpResponse:
    RUNS.append(request.headers.get("Idempotency-Key", "-"))
    return JsonResponse({"run": len(RUNS)}, status=201, headers={"Location": "/payments/1/"})


async def apay(request: HttpRequest) -> HttpResponse:
    return pay(request)


def refuse(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"code": "too_many"}, status=429)


def fake(request: HttpRequest) -> HttpResponse:
    return FAKED.pop(0)


urlpatterns = [
    path("pay/", idempotent(scope=anyone)(pay)),
    path("async/", idempotent(scope=anyone)(apay)),
    path("renamed/", idempotent(scope=anyone, header="X-Key", replay_header="X-Again")(pay)),
    path("refuse/", idempotent(scope=anyone)(refuse)),
    path("unguarded/", pay),
    path("fake/", fake),
]


@pytest.fixture(autouse=True)
def _project(settings: Any) -> Any:
    settings.ROOT_URLCONF = __name__
    RUNS.clear()
    with override_store("memory"):
        yield


@pytest.fixture(params=[Client, APIClient])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param()


def answers(first: HttpResponse, again: HttpResponse, *, replayed: bool = True) -> None:
    """Let `fake` give these."""
    if replayed:
        again["Idempotency-Replayed"] = "true"
    FAKED[:] = [first, again]


def said(send: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return what the failed assertion says."""
    with pytest.raises(AssertionError) as failure:
        assert_idempotent(send, *args, **kwargs)
    return str(failure.value)


def test_first_answer_is_returned(client: Any) -> None:
    response = assert_idempotent(client.post, "/pay/", {"amount": 5})

    assert (response.status_code, response.json()) == (201, {"run": 1})
    assert "Idempotency-Replayed" not in response.headers
    assert len(RUNS) == 1


def test_each_call_draws_a_key_unless_it_is_given(client: Any) -> None:
    for _ in range(2):
        assert_idempotent(client.post, "/pay/")
    assert_idempotent(client.post, "/pay/", key="key-1", headers={"Accept": "*/*"})

    assert len(set(RUNS)) == len(RUNS) == 3
    assert RUNS[2] == "key-1"


def test_names_of_headers_may_be_given(client: Any) -> None:
    assert_idempotent(client.post, "/renamed/", header="X-Key", replay_header="X-Again")


def test_async_client_is_awaited() -> None:
    client = AsyncClient()

    async def main() -> Any:
        return await assert_idempotent(client.post, "/async/")

    assert asyncio.run(main()).json() == {"run": 1}
    assert len(RUNS) == 1


def test_async_answers_that_differ_fail() -> None:
    client = AsyncClient()

    async def main() -> None:
        await assert_idempotent(client.post, "/unguarded/")

    with pytest.raises(AssertionError, match="no replay"):
        asyncio.run(main())


def test_view_that_is_not_guarded_fails(client: Any) -> None:
    text = said(client.post, "/unguarded/")

    assert "no replay: it lacks 'Idempotency-Replayed: true'" in text
    assert "The first answer was 201, the second 201." in text


def test_answer_that_is_not_kept_fails_and_is_named(client: Any) -> None:
    text = said(client.post, "/refuse/")

    assert "The first answer was 429 (too_many), the second 429 (too_many)." in text


def test_key_that_was_used_before_fails(client: Any) -> None:
    assert_idempotent(client.post, "/pay/", key="key-1")

    assert "this key was used before" in said(client.post, "/pay/", key="key-1")


TEXT = {"Location": "/1/", "Content-Type": "text/plain"}


@pytest.mark.parametrize(
    ("first", "again", "expected"),
    [
        (
            HttpResponse(status=201),
            HttpResponse(status=200),
            "The replay has another status. The first answer was 201, the second 200.",
        ),
        (
            HttpResponse(b"x", headers=TEXT),
            HttpResponse(b"x", headers={**TEXT, "Location": "/2/"}),
            "The replay has another location: '/2/' after '/1/'.",
        ),
        (
            HttpResponse(b"x", headers={"ETag": '"1"'}),
            HttpResponse(b"x"),
            "The replay has another etag: None after '\"1\"'.",
        ),
        (
            HttpResponse(b"first"),
            HttpResponse(b"x" * 1000),
            f"The replay has another body: {b'x' * 300 + b'...'!r} after b'first'.",
        ),
    ],
    ids=["status", "header", "no header", "body"],
)
def test_what_differs_fails_and_is_named(
    client: Any, first: HttpResponse, again: HttpResponse, expected: str
) -> None:
    answers(deepcopy(first), deepcopy(again))

    assert said(client.post, "/fake/") == expected


def test_a_date_may_differ(client: Any) -> None:
    answers(HttpResponse(headers={"Date": "now"}), HttpResponse(headers={"Date": "then"}))

    assert_idempotent(client.post, "/fake/")
