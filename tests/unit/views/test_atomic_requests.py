"""R57, R83, R86: transactions around plain views, with ATOMIC_REQUESTS and without."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import ResolverMatch

from django_idempotency.http import idempotent
from tests.app.models import Effect
from tests.unit.http.api import Api
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.conftest import api_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api() -> Api:
    api = api_for("wsgi", "/function/")
    api.client.raise_request_exception = False
    return api


#: Each way to commit, and ATOMIC_REQUESTS where it makes a difference.
each_way = pytest.mark.parametrize(
    ("mode", "atomic_requests"),
    [("joined", False), ("single", True), ("separate", False), ("separate", True)],
    indirect=True,
)


# R57: what commits.


@each_way
@pytest.mark.parametrize(
    ("then", "status", "effects"),
    [
        ("created", 201, 1),
        ("status", 409, 1),
        ("status", 500, 0),
        ("boom", 500, 0),
        ("missing", 404, 0),
    ],
)
def test_R57_only_kept_work_stands(
    api: Api, mode: str, atomic_requests: bool, then: str, status: int, effects: int
) -> None:
    """In Django itself a returned 500 commits ATOMIC_REQUESTS, too."""
    response = api.then(then, status=status)

    assert response.status_code == status
    if mode == "separate" and not atomic_requests:
        effects = 1  # nobody has opened a transaction
    assert Effect.objects.count() == effects
    assert not connection.in_atomic_block


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_R83_R90_requests_without_a_key_have_a_transaction(
    rf: RequestFactory, atomic_requests: bool, method: str
) -> None:
    seen: list[bool] = []

    @idempotent
    def looking(request: HttpRequest) -> HttpResponse:
        seen.append(connection.in_atomic_block)
        return HttpResponse()

    looking(rf.generic(method, "/"))

    assert seen == [atomic_requests or method == "POST"]


@each_way
def test_R83_R90_work_without_a_key_that_raises_rolls_back(
    api: Api, atomic_requests: bool, mode: str
) -> None:
    api.then("boom", key=None)

    assert Effect.objects.count() == (0 if atomic_requests or mode != "separate" else 1)


def test_R83_exempt_view_has_no_transaction(
    rf: RequestFactory, atomic_requests: bool, policy: SetPolicy
) -> None:
    """The project's own non_atomic_requests counts, below the decorator."""
    policy(TRANSACTION="separate", HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})
    seen: list[bool] = []

    @idempotent
    @transaction.non_atomic_requests
    def looking(request: Any) -> HttpResponse:
        seen.append(connection.in_atomic_block)
        return HttpResponse()

    request = rf.post("/", headers={"Idempotency-Key": "k"})
    request.resolver_match = ResolverMatch(looking, (), {}, route="looking/")
    looking(request)

    assert seen == [False]
