"""Section K, R91: what a request is told of work that can only be rolled back."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import pytest
from django.db import (
    IntegrityError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency import WorkRolledBack
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect, Unique
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import answering

pytestmark = pytest.mark.django_db(transaction=True)


def swallow(using: str) -> None:
    """Swallow a database error, outside of an atomic() of its own."""
    Unique.objects.using(using).create(name="taken")
    with suppress(IntegrityError):
        Unique.objects.using(using).create(name="taken")


def answer_of(status: int, using: str = "default") -> Any:
    def answer(request: Request) -> Response:
        swallow(using)
        return Response({"done": True}, status=status)

    return answer


@pytest.mark.parametrize(
    ("store", "mode", "atomic_requests"),
    [
        ("default", "single", False),
        ("default", "joined", False),
        ("default", "joined", True),
        ("default", "separate", True),
        ("memory", "separate", True),
    ],
    indirect=["mode", "atomic_requests"],
)
@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
def test_R91_success_that_can_only_be_rolled_back_is_a_500(
    api: Api,
    mount: Mount,
    store: str,
    mode: str,
    atomic_requests: bool,
    key: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    view = answering(answer_of(201), idempotency_store=store, idempotency_required=False)
    url = mount(view)

    with pytest.raises(WorkRolledBack):
        api(path=url, key=key)

    assert not Effect.objects.exists()
    assert any("can only be rolled back" in entry.getMessage() for entry in caplog.records)
    assert {entry.levelno for entry in caplog.records} == {logging.ERROR}
    assert list(IdempotencyRecord.objects.values_list("state", flat=True)) == (
        ["FAILED"] if key and store == "default" else []
    )


@pytest.mark.parametrize("mode", ["joined"], indirect=True)
@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
def test_R91_refusal_that_can_only_be_rolled_back_is_answered_with_a_warning(
    api: Api, mount: Mount, mode: str, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    url = mount(answering(answer_of(409), idempotency_required=False))

    first, again = api(path=url, key=key), api(path=url, key=key)

    assert [first.status_code, again.status_code] == [409, 409]
    assert not replayed(again)
    assert not Effect.objects.exists()
    assert any("is rolled back" in entry.getMessage() for entry in caplog.records)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
@pytest.mark.parametrize("wished", [False, True], ids=["swallowed", "wished"])
def test_R91_database_that_is_not_the_stores(
    api: Api,
    mount: Mount,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    wished: bool,
) -> None:
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)

    def answer(request: Request) -> Response:
        Effect.objects.using("other").create(name="other")
        swallow("other")
        if wished:
            transaction.set_rollback(True, using="other")
        return Response({"done": True}, status=201)

    url = mount(answering(answer, idempotency_required=False))

    if wished:
        first = api(path=url, key=key)
        assert (first.status_code, first.get("Idempotency-Stored")) == (201, key and "false")
        assert not replayed(api(path=url, key=key))
    else:
        with pytest.raises(WorkRolledBack):
            api(path=url, key=key)

    assert not Effect.objects.using("other").exists()
    assert "set_rollback" not in vars(connections["other"])


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("mode", ["joined"], indirect=True)
@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
@pytest.mark.parametrize("broken", ["default", "other"])
@pytest.mark.parametrize("status", [201, 409])
@pytest.mark.parametrize("wished", [False, True], ids=["swallowed", "wished"])
def test_R90_R91_no_database_commits_what_another_rolls_back(
    api: Api,
    mount: Mount,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    broken: str,
    status: int,
    wished: bool,
) -> None:
    """Half of the work would be left behind, and done once more by the retry."""
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)
    hooks: list[str] = []

    def answer(request: Request) -> Response:
        for using in ("default", "other"):
            Effect.objects.using(using).create(name="half")
            transaction.on_commit(lambda: hooks.append("hook"), using=using)
        if wished:
            transaction.set_rollback(True, using=broken)
        else:
            swallow(broken)
        return Response({"done": True}, status=status)

    url = mount(answering(answer, idempotency_required=False))

    if status == 201 and not wished:
        with pytest.raises(WorkRolledBack):
            api(path=url, key=key)
    else:
        assert api(path=url, key=key).status_code == status

    assert not Effect.objects.exists()
    assert not Effect.objects.using("other").exists()
    assert hooks == []


@pytest.mark.leg("postgres18", "postgres16")  # elsewhere the error of a raw statement is its own
@pytest.mark.parametrize("mode", ["joined"], indirect=True)
@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
def test_R86_R90_hook_of_a_refusal_that_is_rolled_back_does_not_run(
    api: Api, mount: Mount, mode: str, key: str | None
) -> None:
    """Django takes PostgreSQL's answer to such a COMMIT for a commit."""
    hooks: list[str] = []

    def answer(request: Request) -> Response:
        transaction.on_commit(lambda: hooks.append("hook"))
        with suppress(ProgrammingError), connection.cursor() as cursor:
            cursor.execute("SELECT no_such_column")
        return Response({"done": False}, status=409)

    url = mount(answering(answer, idempotency_required=False))

    assert api(path=url, key=key).status_code == 409
    assert not Effect.objects.exists()
    assert hooks == []


@pytest.mark.parametrize("mode", ["joined", "single"], indirect=True)
@pytest.mark.parametrize("wished", [False, True], ids=["swallowed", "wished"])
def test_R55_R57_refusal_that_is_rolled_back_frees_the_key_as_its_status_says(
    api: Api, mount: Mount, mode: str, wished: bool
) -> None:
    """The status decides about the work, the verdict about the record."""

    def answer(request: Request) -> Response:
        if request.data["name"] == "free":
            return Response(status=201)
        if wished:
            transaction.set_rollback(True)
        else:
            swallow("default")
        return Response({"name": ["is taken"]}, status=400)

    url = mount(answering(answer))

    assert api(path=url, body={"name": "taken"}).status_code == 400
    assert api(path=url, body={"name": "free"}).status_code == 201


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
def test_R60_R91_lost_session_is_a_503(
    api: Api, mount: Mount, policy: SetPolicy, key: str | None
) -> None:
    def answer(request: Request) -> Response:
        connection.close()
        return Response({"done": True}, status=201)

    url = mount(answering(answer, idempotency_required=False))

    assert problem(api(path=url, key=key)) == (503, "store_unavailable")
    assert not Effect.objects.exists()
