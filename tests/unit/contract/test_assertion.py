"""assert_idempotent: what it sends, what it returns, and what it says when answers differ."""

from __future__ import annotations

import asyncio

import pytest
from django.http import HttpResponse, JsonResponse
from django.test import AsyncClient, Client
from django.urls import path
from rest_framework.test import APIClient

from django_idempotency.http import idempotent
from django_idempotency.http.scopes import anyone
from django_idempotency.testing import assert_idempotent, override_store

RUNS = []
#: What `fake` answers: the first time, and the second time.
FAKED = []


def pay(request):
    RUNS.append(request.headers.get("Idempotency-Key"))
    return JsonResponse({"run": len(RUNS)}, status=201, headers={"Location": "/payments/1/"})


async def apay(request):
    return pay(request)


urlpatterns = [
    path("pay/", idempotent(scope=anyone)(pay)),
    path("async/", idempotent(scope=anyone, header="X-Key", replay_header="X-Again")(apay)),
    path("refuse/", idempotent(scope=anyone)(lambda _: JsonResponse({"code": "no"}, status=429))),
    path("unguarded/", pay),
    path("fake/", lambda request: FAKED.pop(0)),
]


@pytest.fixture(autouse=True)
def _project(settings):
    settings.ROOT_URLCONF = __name__
    RUNS.clear()
    with override_store("memory"):
        yield


@pytest.fixture
def client():
    return Client()


def said(send, *args, **kwargs):
    """Return what the failed assertion says."""
    with pytest.raises(AssertionError) as failure:
        assert_idempotent(send, *args, **kwargs)
    return str(failure.value)


@pytest.mark.parametrize("client", [Client(), APIClient()])
def test_first_answer_is_returned(client):
    response = assert_idempotent(client.post, "/pay/", {"amount": 5})

    assert (response.status_code, response.json(), len(RUNS)) == (201, {"run": 1}, 1)
    assert "Idempotency-Replayed" not in response.headers


def test_each_call_draws_a_key_unless_it_is_given(client):
    for _ in range(2):
        assert_idempotent(client.post, "/pay/")
    assert_idempotent(client.post, "/pay/", key="key-1", headers={"Accept": "*/*"})

    assert len(set(RUNS)) == len(RUNS) == 3
    assert RUNS[2] == "key-1"
    assert "this key was used before" in said(client.post, "/pay/", key="key-1")


def test_async_client_is_awaited_and_names_of_headers_may_be_given():
    async def main(path):
        names = {"header": "X-Key", "replay_header": "X-Again"}
        return await assert_idempotent(AsyncClient().post, path, **names)

    assert asyncio.run(main("/async/")).json() == {"run": 1}
    assert len(RUNS) == 1
    with pytest.raises(AssertionError, match="no replay"):
        asyncio.run(main("/unguarded/"))


def test_view_that_is_not_guarded_and_answer_that_is_not_kept_fail(client):
    text = said(client.post, "/unguarded/")
    assert "no replay: it lacks 'Idempotency-Replayed: true'" in text
    assert "The first answer was 201, the second 201." in text

    assert "The first answer was 429 (no), the second 429 (no)." in said(client.post, "/refuse/")


@pytest.mark.parametrize(
    ("first", "again", "expected"),
    [
        ({"status": 201}, {}, "status. The first answer was 201, the second 200."),
        ({"headers": {"Location": "/1/"}}, {}, "location: None after '/1/'."),
        ({}, {"content": b"x" * 1000}, f"body: {b'x' * 300 + b'...'!r} after b''."),
        ({"headers": {"Date": "now"}}, {"headers": {"Date": "then"}}, ""),
    ],
    ids=["status", "header", "body", "a date may differ"],
)
def test_what_differs_fails_and_is_named(first, again, expected):
    FAKED[:] = [HttpResponse(**first), HttpResponse(**again)]
    FAKED[1]["Idempotency-Replayed"] = "true"

    if expected:
        assert said(Client().post, "/fake/") == f"The replay has another {expected}"
    else:
        assert_idempotent(Client().post, "/fake/")
