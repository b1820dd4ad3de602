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
from tests.unit.http.cases import name_of
from tests.unit.http.conftest import SetPolicy
from tests.unit.http.views import ANYONE, UNAVAILABLE, answering, state_seen_by_others

pytestmark = pytest.mark.django_db(transaction=True)

# The work.


class End(NamedTuple):
    """How a request ends."""

    #: What the view does.
    then: str
    status: int
    record: str
    work_stands: bool = False


ENDS = {
    "success": End("created", 201, "COMPLETED", work_stands=True),
    "returned 409": End("returned", 409, "COMPLETED", work_stands=True),
    "raised 409": End("raised", 409, "COMPLETED"),
    "returned 400": End("returned", 400, "RELEASED", work_stands=True),
    "raised 403": End("raised", 403, "RELEASED"),
    "returned 500": End("returned", 500, "FAILED"),
    "kept 503": End("returned", 503, "COMPLETED"),
    "unhandled exception": End("boom", 500, "FAILED"),
    "broken transaction, raised 409": End("broken", 409, "COMPLETED"),
    "constraint at COMMIT": End("deferred", 500, "FAILED"),
}
BROKEN, AT_COMMIT = list(ENDS)[-2:]
ROWS = [
    *[("default", "joined", False, end) for end in ENDS],
    *[("default", "single", False, end) for end in ("success", "returned 400", BROKEN, AT_COMMIT)],
    *[("default", "separate", False, end) for end in ("raised 409", "returned 500", BROKEN)],
    *[("default", "separate", True, end) for end in ("raised 409", "returned 500", AT_COMMIT)],
    *[("memory", "separate", True, end) for end in ("returned 500", AT_COMMIT)],
    ("default", "joined", True, "raised 409"),
]


@pytest.mark.parametrize(
    ("store", "mode", "atomic_requests", "end"), ROWS, indirect=["mode", "atomic_requests"]
)
def test_R57_kept_and_committed_together(api, mount, store, mode, atomic_requests, runs, end):
    then, status, state, work_stands = ENDS[end]
    members = {"idempotency_store": store, "idempotency_scope": ANYONE}
    members["idempotency_keep"] = "stripe" if status == 503 else "default"
    api.path = mount(type("Stored", (EffectView,), members))
    api.key = f"{then}-{status}"
    api.client.raise_request_exception = False
    autocommit = mode == "separate" and not atomic_requests
    kept = state == "COMPLETED"

    first = api.then(then, status=status)
    if store == "default":
        seen_by_others = state_seen_by_others()
    else:
        seen_by_others = store_for(store).get(record_id("http", "anyone", api.key)).state.value
    effects = Effect.objects.count()
    again = api.then(then, status=status)

    assert first.status_code == again.status_code == status
    assert seen_by_others == state
    assert effects == (work_stands or autocommit)
    assert replayed(again) == kept
    assert not kept or again.content == first.content
    assert len(runs) == (1 if kept else 2)
    assert Effect.objects.count() == effects * len(runs)
    assert not Child.objects.exists()
    assert Unique.objects.exists() == (then == "broken" and autocommit)
    assert not connection.in_atomic_block
    assert connection.get_autocommit()


def test_R57_answer_is_rendered_inside_the_transaction(api, mount):
    class Unrenderable(JSONRenderer):
        def render(self, data: Any, *args: Any, **kwargs: Any) -> bytes:
            raise ValueError("cannot be rendered")

    with pytest.raises(ValueError, match="cannot be rendered"):
        api(path=mount(type("Rendered", (EffectView,), {"renderer_classes": [Unrenderable]})))
    assert state_seen_by_others() == "FAILED"
    assert not Effect.objects.exists()


def test_R57_unguarded_requests_keep_djangos_transaction(api, mount, policy, atomic):
    policy(TRANSACTION="separate")
    api.path = mount(type("PutOnly", (EffectView,), {"idempotency_methods": {"PUT"}}))
    assert api.then("raised", status=409).status_code == 409
    assert not Effect.objects.exists()
    assert not IdempotencyRecord.objects.exists()


def test_R84_error_of_an_exempt_view_is_answered_outside_of_a_transaction(
    api, mount, policy, atomic
):
    policy(TRANSACTION="separate")
    within: list[bool] = []

    class Answering(EffectView):
        def handle_exception(self, exc: Exception) -> Response:
            within.append(connection.in_atomic_block)
            return super().handle_exception(exc)

    for view in (Answering.as_view(), transaction.non_atomic_requests(Answering.as_view())):
        assert api.then("raised", status=409, path=mount(view), key=f"{len(within)}").data
    assert within == [True, False]


# R91: work that returned, and can only be rolled back.


def swallow(using: str) -> None:
    """Swallow a database error, outside of an atomic() of its own."""
    Unique.objects.using(using).create(name="taken")
    with suppress(IntegrityError):
        Unique.objects.using(using).create(name="taken")


class Doomed(NamedTuple):
    """Work that returned, and can only be rolled back: by an error, or because it wished so."""

    mode: str
    status: int = 201
    wished: bool = False
    key: str | None = "key-1"
    atomic_requests: bool = False
    #: Of which record, and of which transaction where there are two.
    store: str = "default"
    broken: str = "default"

    def answer(self, request: Any) -> Response:
        if self.wished:
            transaction.set_rollback(True, using=self.broken)
        else:
            swallow(self.broken)
        return Response({"done": True}, status=self.status)


@pytest.fixture
def doomed(request: pytest.FixtureRequest, policy: SetPolicy, monkeypatch: Any) -> Doomed:
    """The case, in a project whose work commits so."""
    case: Doomed = request.param
    policy(TRANSACTION=case.mode)
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", case.atomic_requests)
    return case


@pytest.mark.parametrize(
    "doomed",
    [
        Doomed("single"),
        Doomed("joined"),
        Doomed("joined", key=None),
        Doomed("separate", atomic_requests=True),
        Doomed("separate", atomic_requests=True, store="memory"),
    ],
    indirect=True,
    ids=name_of,
)
def test_R91_success_that_can_only_be_rolled_back_is_a_500(api, mount, doomed, caplog):
    policy = {"idempotency_store": doomed.store, "idempotency_required": False}
    api.path = mount(answering(doomed.answer, **policy))
    with pytest.raises(WorkRolledBack):
        api(key=doomed.key)
    assert not Effect.objects.exists()
    assert any("can only be rolled back" in entry.getMessage() for entry in caplog.records)
    assert {entry.levelno for entry in caplog.records} == {logging.ERROR}
    assert list(IdempotencyRecord.objects.values_list("state", flat=True)) == (
        ["FAILED"] if doomed.key and doomed.store == "default" else []
    )


@pytest.mark.parametrize(
    "doomed",
    [
        Doomed("single", wished=True),
        Doomed("separate", wished=True, atomic_requests=True),
        Doomed("joined", status=409),
        Doomed("joined", status=409, key=None),
        Doomed("single", status=400),
    ],
    indirect=True,
    ids=name_of,
)
def test_R91_success_that_wished_to_be_rolled_back_and_refusal_are_answered_and_not_kept(
    api, mount, doomed, caplog
):
    key, status = doomed.key, doomed.status
    api.path = mount(answering(doomed.answer, idempotency_required=False))
    first, again = api(key=key), api(key=key)
    assert first.status_code == again.status_code == status
    assert first.get("Idempotency-Stored") == ("false" if key and status != 400 else None)
    assert not replayed(again)
    assert not Effect.objects.exists()
    assert {"state": "RELEASED"} in IdempotencyRecord.objects.values("state") or status != 400
    told = any("is rolled back" in line.getMessage() for line in caplog.records)
    assert told != doomed.wished


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize(
    "doomed",
    [
        Doomed("joined"),
        Doomed("single", wished=True),
        Doomed("joined", broken="other", key=None),
        Doomed("joined", broken="other", status=409),
        Doomed("joined", broken="other", status=409, wished=True, key=None),
        Doomed("separate", broken="other"),
    ],
    indirect=True,
    ids=name_of,
)
def test_R90_R91_no_database_commits_what_another_rolls_back(api, mount, monkeypatch, doomed):
    """Half of the work would be left behind, and done once more by the retry."""
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)
    key, status, separate = doomed.key, doomed.status, doomed.mode == "separate"
    hooks: list[str] = []

    def answer(request: Request) -> Response:
        for using in ("default", "other"):
            Effect.objects.using(using).create(name="half")
            if using == doomed.broken or not separate:
                transaction.on_commit(lambda: hooks.append("hook"), using=using)
        return doomed.answer(request)

    api.path = mount(answering(answer, idempotency_required=False))

    if status == 201 and not doomed.wished:
        with pytest.raises(WorkRolledBack):
            api(key=key)
    else:
        first = api(key=key)
        assert (first.status_code, first.get("Idempotency-Stored")) == (status, key and "false")
        assert not replayed(api(key=key))

    assert Effect.objects.exists() == separate  # that commits by itself
    assert not Effect.objects.using("other").exists()
    assert hooks == []
    assert "set_rollback" not in vars(connections["other"])


def close(request: Request) -> Response:
    connection.close()
    return Response({"done": True}, status=201)


@pytest.mark.parametrize(
    ("mode", "atomic_requests", "key"),
    [
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
    response = api(path=mount(answering(close, idempotency_required=False)), key=key)
    if mode == "separate" and not atomic_requests:  # each statement has committed by itself
        assert response.status_code == 201
        assert Effect.objects.exists()
    else:
        assert problem(response) == UNAVAILABLE
        assert not Effect.objects.exists()
        assert IdempotencyRecord.objects.count() == bool(key)
        # The completion of `joined` finds what has become of the record; the work did not fail.
        state = "RELEASED" if mode == "joined" else "FAILED"
        assert all(record.state == state for record in IdempotencyRecord.objects.all())


@pytest.mark.parametrize("mode", ["separate"], indirect=True)
def test_R84_R90_work_without_a_transaction_loses_none_with_the_connection(api, mount, mode):
    """That of a TestCase does not count."""
    around: Any = transaction.atomic()
    around._from_testcase = True
    with around:
        response = api(path=mount(answering(close, idempotency_required=False)), key=None)
    assert response.status_code == 201


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("key", ["key-1", None])
def test_R60_R90_work_that_went_with_its_connection_commits_on_no_other(
    api, mount, monkeypatch, key
):
    """The transactions of the other aliases commit before the completion could tell."""
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)

    def answer(request: Request) -> Response:
        Effect.objects.using("other").create(name="tea")
        connection.close()
        return Response({"done": True}, status=201)

    response = api(path=mount(answering(answer, idempotency_required=False)), key=key)

    assert problem(response) == UNAVAILABLE
    assert not Effect.objects.using("other").exists()
    assert not IdempotencyRecord.objects.filter(state__in=["COMPLETED", "IN_PROGRESS"]).exists()
