"""Section F, R57, R91: work that stands, the record that says so, and work that cannot stand."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from django.db import IntegrityError, connection, connections, transaction
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency import WorkRolledBack
from django_idempotency.conf import store_for
from django_idempotency.keys import record_id
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Child, Effect, Unique
from tests.app.views import EffectView
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import ANYONE, KEYED, OPEN, UNAVAILABLE, answering, state_seen_by_others

pytestmark = pytest.mark.django_db(transaction=True)
WISHED = pytest.mark.parametrize("wished", [False, True], ids=["swallowed", "wished"])

# The work.


class Row(NamedTuple):
    """How a request ends, whether its work stands, and what the record says."""

    then: str
    status: int
    work_stands: bool
    state: str


BROKEN = "broken transaction, raised 409"
ROWS = {
    "success": Row("created", 201, True, "COMPLETED"),
    "returned 409": Row("returned", 409, True, "COMPLETED"),
    "raised 409": Row("raised", 409, False, "COMPLETED"),
    "returned 400": Row("returned", 400, True, "RELEASED"),
    "raised 403": Row("raised", 403, False, "RELEASED"),
    "returned 500": Row("returned", 500, False, "FAILED"),
    "raised 503": Row("raised", 503, False, "FAILED"),
    "unhandled exception": Row("boom", 500, False, "FAILED"),
    BROKEN: Row("broken", 409, False, "COMPLETED"),
    "constraint at COMMIT": Row("deferred", 500, False, "FAILED"),
}
#: The rows in which Django's transaction around a record that commits by itself tells.
TELLING = ["success", "raised 409", "returned 500", "constraint at COMMIT"]
ENDS = [
    *[("default", "joined", False, row) for row in ROWS],
    *[("default", "separate", False, row) for row in [*TELLING, "returned 400", BROKEN]],
    *[("default", "single", False, row) for row in [*TELLING, "returned 400", BROKEN]],
    *[("default", "separate", True, row) for row in [*TELLING, BROKEN]],
    ("default", "joined", True, "raised 409"),
    *[("memory", "separate", atomic, "returned 500") for atomic in (False, True)],
    ("memory", "separate", True, "constraint at COMMIT"),
]


@pytest.mark.parametrize(
    ("store", "mode", "atomic_requests", "name"), ENDS, indirect=["mode", "atomic_requests"]
)
def test_R57_kept_and_committed_together(api, mount, store, mode, atomic_requests, runs, name):
    def state() -> str | None:
        if store == "default":
            return state_seen_by_others()
        record = store_for(store).get(record_id("http", "anyone", key))
        return record and record.state.value

    row = ROWS[name]
    members = {"idempotency_store": store, "idempotency_scope": ANYONE}
    url, key = mount(type("Stored", (EffectView,), members)), f"{row.then}-{row.status}"
    api.client.raise_request_exception = False
    autocommit = mode == "separate" and not atomic_requests
    kept = row.state == "COMPLETED"

    first = api.then(row.then, status=row.status, key=key, path=url)
    seen_by_others, effects = state(), Effect.objects.count()
    again = api.then(row.then, status=row.status, key=key, path=url)

    assert first.status_code == again.status_code == row.status
    assert seen_by_others == row.state
    assert effects == (row.work_stands or autocommit)
    assert replayed(again) == kept
    assert not kept or again.content == first.content
    assert len(runs) == (1 if kept else 2)
    assert Effect.objects.count() == effects * len(runs)
    assert not Child.objects.exists()
    assert Unique.objects.exists() == (row.then == "broken" and autocommit)
    assert not connection.in_atomic_block
    assert connection.get_autocommit()


def test_R57_kept_5xx_is_kept_without_its_work(api, policy, mode, runs):
    policy(HTTP={"KEEP": "stripe"})

    first, again = (api.then("returned", status=503) for _ in range(2))

    assert [first.status_code, again.status_code] == [503, 503]
    assert replayed(again)
    assert len(runs) == 1
    assert Effect.objects.count() == (mode == "separate")


@OPEN
@pytest.mark.parametrize(("status", "state"), [(201, "COMPLETED"), (403, "RELEASED")])
def test_R57_work_and_record_commit_at_the_same_moment(api, mount, mode, status, state):
    seen: list[Any] = []

    def answer(request: Request) -> Response:
        transaction.on_commit(lambda: seen.append((state_seen_by_others(), Effect.objects.count())))
        seen.append(state_seen_by_others())
        return Response({}, status=status)

    assert api(path=mount(answering(answer))).status_code == status
    assert seen == ["IN_PROGRESS" if mode == "joined" else None, (state, 1)]


class Unrenderable(JSONRenderer):
    def render(self, data: Any, *args: Any, **kwargs: Any) -> bytes:
        raise ValueError("cannot be rendered")


def test_R57_answer_is_rendered_inside_the_transaction(api, mount, runs):
    url = mount(type("Rendered", (EffectView,), {"renderer_classes": [Unrenderable]}))

    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be rendered"):
            api(path=url)

    assert state_seen_by_others() == "FAILED"
    assert not Effect.objects.exists()
    assert len(runs) == 2


@pytest.mark.parametrize("atomic_requests", [True], indirect=True)
@pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "unguarded method"])
def test_R57_unguarded_requests_keep_djangos_transaction(api, mount, policy, atomic_requests, key):
    policy(TRANSACTION="separate")
    members = {"idempotency_required": False, "idempotency_methods": {"PUT"}}

    api.then("raised", status=409, key=key, path=mount(type("PutOnly", (EffectView,), members)))

    assert not Effect.objects.exists()
    assert not IdempotencyRecord.objects.exists()


# R91: work that returned, and can only be rolled back.


def swallow(using: str) -> None:
    """Swallow a database error, outside of an atomic() of its own."""
    Unique.objects.using(using).create(name="taken")
    with suppress(IntegrityError):
        Unique.objects.using(using).create(name="taken")


def answer_of(status: int, *, wished: bool = False) -> Any:
    def answer(request: Request) -> Response:
        transaction.set_rollback(True) if wished else swallow("default")
        return Response({"done": True}, status=status)

    return answer


@pytest.mark.parametrize(
    ("store", "mode", "atomic_requests", "key"),
    [
        ("default", "single", False, "key-1"),
        ("default", "joined", False, "key-1"),
        ("default", "joined", False, None),
        ("default", "separate", True, "key-1"),
        ("memory", "separate", True, "key-1"),
    ],
    indirect=["mode", "atomic_requests"],
)
def test_R91_success_that_can_only_be_rolled_back_is_a_500(
    api, mount, store, mode, atomic_requests, key, caplog
):
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


@pytest.mark.parametrize(
    ("mode", "atomic_requests"),
    [("single", False), ("joined", False), ("separate", True)],
    indirect=True,
)
def test_R91_success_that_wished_to_be_rolled_back_is_answered_and_not_kept(
    api, mount, mode, atomic_requests
):
    url = mount(answering(answer_of(201, wished=True)))

    first, again = api(path=url), api(path=url)

    assert Effect.objects.count() == 0
    assert (first.status_code, first["Idempotency-Stored"]) == (201, "false")
    assert not replayed(again)


@KEYED
def test_R91_refusal_that_can_only_be_rolled_back_is_answered_with_a_warning(
    api, mount, key, caplog
):
    url = mount(answering(answer_of(409), idempotency_required=False))

    first, again = api(path=url, key=key), api(path=url, key=key)

    assert [first.status_code, again.status_code] == [409, 409]
    assert not replayed(again)
    assert not Effect.objects.exists()
    assert any("is rolled back" in entry.getMessage() for entry in caplog.records)


@OPEN
@WISHED
def test_R55_R57_refusal_that_is_rolled_back_frees_the_key_as_its_status_says(
    api, mount, mode, wished
):
    """The status decides about the work, the verdict about the record."""

    def answer(request: Request) -> Any:
        free = request.data["name"] == "free"
        return Response(status=201) if free else answer_of(400, wished=wished)(request)

    url = mount(answering(answer))

    assert api(path=url, body={"name": "taken"}).status_code == 400
    assert api(path=url, body={"name": "free"}).status_code == 201


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize(
    ("mode", "broken", "status", "wished", "key"),
    [
        ("joined", "default", 201, False, "key-1"),
        ("single", "default", 201, False, "key-1"),
        ("single", "default", 201, True, "key-1"),
        ("joined", "other", 201, False, None),
        ("joined", "other", 201, True, "key-1"),
        ("joined", "other", 409, False, "key-1"),
        ("joined", "other", 409, True, None),
        ("separate", "other", 201, False, "key-1"),
    ],
    indirect=["mode"],
)
def test_R90_R91_no_database_commits_what_another_rolls_back(
    api, mount, mode, monkeypatch, key, broken, status, wished
):
    """Half of the work would be left behind, and done once more by the retry."""
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)
    hooks: list[str] = []

    def answer(request: Request) -> Response:
        for using in ("default", "other"):
            Effect.objects.using(using).create(name="half")
            if using == broken or mode != "separate":
                transaction.on_commit(lambda: hooks.append("hook"), using=using)
        transaction.set_rollback(True, using=broken) if wished else swallow(broken)
        return Response({"done": True}, status=status)

    url = mount(answering(answer, idempotency_required=False))

    if status == 201 and not wished:
        with pytest.raises(WorkRolledBack):
            api(path=url, key=key)
    else:
        first = api(path=url, key=key)
        assert (first.status_code, first.get("Idempotency-Stored")) == (status, key and "false")
        assert not replayed(api(path=url, key=key))

    assert Effect.objects.exists() == (mode == "separate")  # that commits by itself
    assert not Effect.objects.using("other").exists()
    assert hooks == []
    assert "set_rollback" not in vars(connections["other"])


@pytest.mark.parametrize(
    ("mode", "atomic_requests", "key"),
    [
        ("single", False, "key-1"),
        ("joined", False, "key-1"),
        ("joined", False, None),
        ("separate", False, "key-1"),
        ("separate", True, "key-1"),
    ],
    indirect=["mode", "atomic_requests"],
)
def test_R60_success_of_work_that_went_with_its_connection_is_503(
    api, mount, mode, atomic_requests, key
):
    def answer(request: Request) -> Response:
        connection.close()
        return Response({"done": True}, status=201)

    response = api(path=mount(answering(answer, idempotency_required=False)), key=key)

    if mode == "separate" and not atomic_requests:  # each statement has committed by itself
        assert response.status_code == 201
        assert Effect.objects.exists()
    else:
        assert problem(response) == UNAVAILABLE
        assert not Effect.objects.exists()
        assert not IdempotencyRecord.objects.filter(state__in=["COMPLETED", "IN_PROGRESS"]).exists()
