"""R57, R83, R86: transactions around plain views, with ATOMIC_REQUESTS and without."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import ResolverMatch

from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.http.views import state_seen_by_others
from tests.unit.views.conftest import api_for, sending, together
from tests.unit.views.work import Gate

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


def names() -> list[str]:
    return sorted(Effect.objects.values_list("name", flat=True))


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


def test_R57_work_that_asked_to_be_rolled_back_is_not_kept(
    api: Api, mode: str, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    first, again = (api.then("rolled_back") for _ in range(2))

    assert [first.status_code, again.status_code] == [409, 409]
    assert not replayed(again)
    assert names() == []
    assert len(runs) == 2


@each_way
def test_R57_R58_deferred_constraint_fails_at_the_commit(
    api: Api, mode: str, atomic_requests: bool
) -> None:
    api.client.raise_request_exception = True

    with pytest.raises(IntegrityError):
        api.then("deferred")

    if mode != "separate" or atomic_requests:
        assert names() == []
        assert state_seen_by_others() != "COMPLETED"
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


@pytest.mark.parametrize(
    ("mode", "atomic_requests"),
    [("joined", False), ("separate", False), ("separate", True)],
    indirect=True,
)
def test_R83_claim_is_visible_while_the_view_runs(
    mode: str, atomic_requests: bool, gate: Gate
) -> None:
    with together(sending("function")) as first:
        assert gate.reached.wait(10)
        seen = state_seen_by_others()
        duplicate = sending("function")()
        effects = names()
        gate.open.set()

    assert seen == "IN_PROGRESS"
    assert problem(duplicate) == (409, "in_progress")
    assert effects == (["first"] if mode == "separate" and not atomic_requests else [])
    assert first[0].status_code == 201
    assert names() == ["first"]


# R86: on_commit hooks.


@each_way
@pytest.mark.parametrize(
    ("status", "left"), [(201, ["first", "hook"]), (400, ["first", "hook"]), (500, [])]
)
def test_R57_R86_hook_runs_once_if_the_work_commits_and_not_on_a_replay(
    api: Api, mode: str, atomic_requests: bool, status: int, left: list[str]
) -> None:
    api({"then": "hook", "status": status})

    if mode != "separate" or atomic_requests:
        assert names() == left
    if status == 201:
        assert replayed(api({"then": "hook", "status": status}))
        assert names() == left


@each_way
def test_R86_R58_hook_that_raises_passes_on_and_the_answer_is_kept(
    api: Api, mode: str, atomic_requests: bool, runs: list[str]
) -> None:
    first, again = (api.then("hook_boom") for _ in range(2))

    assert first.status_code == 500
    if mode != "separate" or atomic_requests:
        assert (again.status_code, replayed(again)) == (201, True)
        assert len(runs) == Effect.objects.count() == 1
    else:
        assert IdempotencyRecord.objects.get().state == "FAILED"
