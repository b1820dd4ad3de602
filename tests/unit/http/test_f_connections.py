"""Section F, R57, R58 and R60: connections that are lost, and more than one database."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Child, Effect
from tests.app.views import EffectView, Refusal
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount

# A connection that is lost.


class Severed(EffectView):
    """The connection is lost in the middle of the work, which goes on regardless."""

    def post(self, request: Request) -> Any:
        Effect.objects.create(name="severed")
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        except DatabaseError:
            pass
        if request.data["then"] == "raised":
            raise Refusal(409)
        if request.data["then"] == "boom":
            raise RuntimeError("boom")
        return Response({"done": True}, status=201)


@pytest.mark.django_db(transaction=True)
@pytest.mark.leg("postgres18", "postgres16")
def test_R57_answer_is_kept_on_a_new_connection(
    api: Api, mount: Mount, mode: str, atomic_requests: bool, runs: list[str]
) -> None:
    url = mount(Severed)

    first, again = api.then("raised", path=url), api.then("raised", path=url)

    assert first.status_code == again.status_code == 409
    assert replayed(again)
    assert Effect.objects.count() == (mode == "separate" and not atomic_requests)
    assert len(runs) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.leg("postgres18", "postgres16")
def test_R58_exception_passes_out_of_a_lost_connection(
    api: Api, mount: Mount, mode: str, atomic_requests: bool, runs: list[str]
) -> None:
    url = mount(Severed)

    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^boom$"):
            api.then("boom", path=url)

    assert len(runs) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("mode", ["joined", "single"], indirect=True)
def test_R60_success_on_a_lost_connection_is_503(
    api: Api, mount: Mount, mode: str, atomic_requests: bool, runs: list[str]
) -> None:
    url = mount(Severed)

    lost = api.then("created", path=url)

    assert problem(lost) == (503, "store_unavailable")
    assert not Effect.objects.exists()
    assert api.then("created", path=url).status_code == 503
    assert len(runs) == 2


class LostAndUsedAgain(EffectView):
    """The handler swallows that its connection is gone, or closes it itself."""

    def post(self, request: Request) -> Any:
        Effect.objects.create(name="lost")
        if request.data["then"] == "closed":
            connection.close()
        else:
            with suppress(DatabaseError), connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            with suppress(DatabaseError):
                Effect.objects.create(name="swallowed")
        return Response({"done": True}, status=201)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("severed", marks=pytest.mark.leg("postgres18", "postgres16")),
        pytest.param("closed"),
    ],
)
def test_R60_success_of_work_that_went_with_its_connection_is_503(
    api: Api, mount: Mount, mode: str, atomic_requests: bool, runs: list[str], how: str
) -> None:
    url = mount(LostAndUsedAgain)

    answer = api.then(how, path=url)

    if mode == "separate" and not atomic_requests:  # each statement has committed by itself
        assert answer.status_code == 201
        assert Effect.objects.exists()
    else:
        assert problem(answer) == (503, "store_unavailable")
        assert not Effect.objects.exists()
        assert IdempotencyRecord.objects.filter(state__in=["COMPLETED", "IN_PROGRESS"]).count() == 0


# Two databases.


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("then", ["returned", "raised"])
def test_R57_transactions_of_other_databases_are_djangos(
    api: Api, mount: Mount, mode: str, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)

    class Two(EffectView):
        def post(self, request: Request) -> Any:
            Effect.objects.using("other").create(name="other")
            return super().post(request)

    response = api.then(then, status=409, path=mount(Two))

    assert response.status_code == 409
    assert IdempotencyRecord.objects.get().state == "COMPLETED"
    assert Effect.objects.using("other").count() == (then == "returned")


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_R57_commit_that_fails_on_another_database(
    api: Api, mount: Mount, mode: str, monkeypatch: pytest.MonkeyPatch, runs: list[str]
) -> None:
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)

    class Two(EffectView):
        def post(self, request: Request) -> Any:
            Child.objects.using("other").create(parent_id=10**9)
            return super().post(request)

    url = mount(Two)
    for _ in range(2):
        with pytest.raises(DatabaseError):
            api(path=url)

    assert IdempotencyRecord.objects.get().state == "FAILED"
    assert Effect.objects.filter(name="first").count() == (2 if mode == "separate" else 0)
    assert len(runs) == 2
