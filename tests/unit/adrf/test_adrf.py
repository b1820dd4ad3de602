"""Guarded views of adrf: coroutines and functions, on both stacks."""
# mypy: ignore-errors

from __future__ import annotations

import pytest

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.adrf.urls import VIEWS
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import atomic, policy
from tests.unit.views.conftest import api_for, collected

__all__ = ["atomic", "collected", "policy"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def project(settings, policy):
    settings.ROOT_URLCONF = "tests.unit.adrf.urls"


@pytest.fixture(params=["wsgi", "asgi"])
def at(request):
    return lambda name: api_for(request.param, f"/{name}/", raises=False)


def states():
    return list(IdempotencyRecord.objects.values_list("state", flat=True))


@pytest.mark.parametrize("name", VIEWS)
def test_R14_R19_R25_R37_one_run_for_each_user_and_none_for_the_refused(at, name):
    api = at(name)
    refused = [api(user=None), api(headers={"X-Forbidden": "1"}), api(key=None)]
    assert [it.status_code for it in refused] == [401, 403, 400]
    assert (states(), Effect.objects.count()) == ([], 0)

    first, again, bobs = api(), api(), api(user="bob")

    assert [it.status_code for it in (first, again, bobs)] == [201, 201, 201]
    assert [replayed(it) for it in (first, again, bobs)] == [False, True, False]
    assert (again.content, again.headers.get("Location")) == (
        first.content,
        first.headers.get("Location"),
    )
    assert problem(api({"name": "other"})) == (422, "idempotency_key_reused")
    assert [api(user=None).status_code, api(headers={"X-Forbidden": "1"}).status_code] == [401, 403]
    assert Effect.objects.count() == IdempotencyRecord.objects.count() == 2


JOINED = {"view", "async-joined", "async-action", "async-set-sync", "set", "above"}


@pytest.mark.parametrize("name", sorted({*VIEWS} - {"async-model"}))
@pytest.mark.parametrize(
    ("then", "status", "state"),
    [("raised", 409, "COMPLETED"), ("raised", 400, "RELEASED"), ("boom", 500, "FAILED")],
)
def test_R55_R57_R58_errors(at, name, then, status, state):
    answers = [at(name).then(then, status=status) for _ in range(2)]

    kept = state == "COMPLETED"
    assert [it.status_code for it in answers] == [status, status]
    assert [replayed(it) for it in answers] == [False, kept]
    left = 0 if name in JOINED else 1 if kept else 2
    assert (Effect.objects.count(), states()) == (left, [state])


def test_R18_a_keyword_of_the_url_may_have_any_name(at):
    api = at("named/pay/7")
    assert [replayed(api()) for _ in range(2)] == [False, True]
    assert Effect.objects.count() == 1


def test_reading_is_not_guarded(at):
    assert at("async-view")(method="GET").json() == {"count": 0}
    assert at("async-model")(method="GET").json() == []
    assert at("async-below")(method="GET").status_code == 201
    assert states() == []


@pytest.mark.parametrize("key", ["key-1", None])
def test_R96_coroutine_that_would_lose_its_ATOMIC_REQUESTS_is_refused(atomic, policy, key):

    for name in ("async-view", "async-set"):
        api = api_for("asgi", f"/{name}/")
        with pytest.raises(RuntimeError, match="ATOMIC_REQUESTS"):
            api()
    with pytest.raises(RuntimeError, match="ATOMIC_REQUESTS"):
        api_for("asgi", "/async-view/")(method="GET")
    joined = api_for("asgi", "/async-joined/")
    assert [replayed(joined()), replayed(joined())] == [False, True]
