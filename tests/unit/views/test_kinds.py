"""R18: one story for every kind of view, under WSGI and under ASGI."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.db import transaction
from django.urls import resolve

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, SetPolicy
from tests.unit.views.conftest import api_for
from tests.unit.views.urls import ASYNC, DRF_KINDS, FREE, GUARDED

pytestmark = pytest.mark.django_db(transaction=True)


def pairs() -> list[tuple[str, str, str]]:
    """Each kind on both stacks: at home its work joins, on the other one it does not always."""
    modes = {False: "separate", True: "single"}
    return [
        row
        for number, kind in enumerate([*GUARDED, *FREE])
        for home, other in [("asgi", "wsgi") if kind in ASYNC else ("wsgi", "asgi")]
        for row in [(kind, home, "joined"), (kind, other, modes[number % 4 < 2])]
    ]


@pytest.fixture
def served(request: pytest.FixtureRequest, policy: SetPolicy) -> Api:
    """A client of a view of this kind, on this stack, whose work commits in this way."""
    kind, stack, mode = request.param
    if kind in FREE:
        request.getfixturevalue("with_middleware")
    policy(TRANSACTION=mode)
    api = api_for(stack, f"/{kind}/")
    api.client.raise_request_exception = False
    return api


each_pair = pytest.mark.parametrize("served", pairs(), ids="-".join, indirect=True)
#: Work that joins: each kind at home.
each_kind = pytest.mark.parametrize("served", pairs()[::2], ids="-".join, indirect=True)
#: Views at which the rule of a plain view is decided: without a loop, and on one.
decided = pytest.mark.parametrize("kind", ["function", "async-function"], indirect=True)


@each_pair
def test_R24_R25_R31_R18_first_and_again(served: Api, runs: list[str]) -> None:
    first, again = served(), served()

    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    for name in ("Content-Type", "Location", "ETag"):
        assert first.headers[name] == again.headers[name]
    assert (replayed(first), replayed(again)) == (False, True)
    assert "seen" in first.cookies
    assert "seen" not in again.cookies
    assert "Cache-Control" not in first.headers
    assert again.headers["Cache-Control"] == "no-store"
    assert len(runs) == Effect.objects.count() == 1


@each_kind
def test_R2_R8_R12_R18_R21_R37_R49_what_is_refused_does_not_run(
    served: Api, in_progress: InProgress, runs: list[str]
) -> None:
    """Mismatch, in progress, an invalid key, no scope; and what is not guarded leaves nothing."""
    served()

    assert problem(served({"name": "other"})) == (422, "idempotency_key_reused")
    in_progress()
    busy = served()
    assert problem(busy) == (409, "in_progress")
    assert (busy.headers["Retry-After"], busy.headers["Cache-Control"]) == ("1", "no-store")
    assert problem(served(key='""')) == (400, "idempotency_key_invalid")
    assert problem(served(user=None)) == (400, "scope_missing")
    assert runs == ["first"]
    reads = [served("", method="GET", key=key).status_code for key in (None, "k", '"malformed')]
    assert reads == [200, 200, 200]
    assert [served(key=None, user=None).status_code for _ in range(2)] == [201, 201]
    assert IdempotencyRecord.objects.count() == 1


@each_kind
def test_R18_R55_R57_R58_work_that_fails(served: Api, runs: list[str]) -> None:
    """What is raised rolls back, releases or fails; a refusal that is returned is kept."""
    thens = {"missing": 404, "boom": 500, "status": 409}
    first = {then: served.then(then, status=409, key=then) for then in thens}
    effects = Effect.objects.count()
    states = dict(IdempotencyRecord.objects.values_list("key", "state"))
    other = {then: served({"name": "other"}, key=then) for then in thens}

    assert {then: answer.status_code for then, answer in first.items()} == thens
    assert states == {"missing": "RELEASED", "boom": "FAILED", "status": "COMPLETED"}
    assert [answer.status_code for answer in other.values()] == [201, 422, 422]
    assert served.then("boom", status=409, key="boom").status_code == 500
    assert replayed(served.then("status", status=409, key="status"))
    assert len(runs) == 5
    assert effects == 1
    assert not transaction.get_connection().in_atomic_block


def test_R18_kinds_are_what_they_say() -> None:
    """So that no rule is shown twelve times for one and the same kind."""
    for kind in (*GUARDED, *FREE):
        view: Any = resolve(f"/{kind}/").func

        assert iscoroutinefunction(view) == (kind in ASYNC)
        assert hasattr(view, "cls") == (kind in DRF_KINDS)
        if kind not in DRF_KINDS:
            assert hasattr(view, "view_class") == kind.endswith("class")


# What is decided in the guard of plain views, once.


@decided
def test_R1_missing_but_required(api: Api, policy: SetPolicy, runs: list[str]) -> None:
    policy(HTTP={"REQUIRED": True})

    assert problem(api(key=None)) == (400, "idempotency_key_missing")
    assert runs == []


@pytest.mark.parametrize("methods", [None, {"PUT"}], ids=str)
def test_R13_methods_are_guarded_by_choice(policy: SetPolicy, methods: set[str] | None) -> None:
    policy(HTTP={"METHODS": methods})
    api, unsafe = api_for("wsgi", "/function/"), ("POST", "PATCH", "PUT", "DELETE")

    guarded = [m for m in unsafe if replayed([api(method=m, key=m) for _ in range(2)][-1])]

    assert {*guarded} == (methods or {*unsafe})


@decided
def test_R57_deferred_rendering_is_part_of_the_work(api: Api) -> None:
    """The template of the response writes a row, once."""
    first, again = api.then("template"), api.then("template")

    assert (first.status_code, replayed(again)) == (201, True)
    assert first.content == again.content
    assert Effect.objects.filter(name="rendered").count() == 1
