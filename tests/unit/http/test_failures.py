"""Section F, R58 to R61, R95: exceptions, a store that fails, and one that gives back nonsense."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models.signals import post_save
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

import django_idempotency as idempotency
from django_idempotency import StoreError
from django_idempotency.conf import store_for
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.memory import MemoryStore
from tests.app.models import Effect
from tests.app.views import THEN, EffectView, created
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.http.forged import FORGED, each_is_a_503
from tests.unit.http.views import WAYS, BareView, answering, state_seen_by_others

pytestmark = pytest.mark.django_db(transaction=True)
BOTH = pytest.mark.django_db(transaction=True, databases=["default", "other"])
#: The ways in which claim or completion is part of the work's own transaction.
OPEN = pytest.mark.parametrize("mode", ["single", "joined"], indirect=True)
JOINED = pytest.mark.parametrize("mode", ["joined"], indirect=True)
UNAVAILABLE = (503, "store_unavailable")
WORKING = "django_idempotency.stores.database.DatabaseStore"

# R58: exceptions.


@WAYS
@pytest.mark.parametrize("then", ["boom", "deferred"])
def test_R58_exception_is_the_one_that_was_raised(api, mount, mode, atomic_requests, then):
    """It comes out of the guarded view as it comes out of the same view without a key."""
    url = mount(type("Unguarded", (EffectView,), {"idempotency_required": False}))
    errors = []
    for key in (None, "key-1"):
        with pytest.raises(Exception, match=r".") as raised:
            api.then(then, key=key, path=url)
        errors.append((type(raised.value), type(raised.value.__cause__), len(raised.value.args)))

    assert errors[0] == errors[1]
    assert not connection.in_atomic_block


def test_R58_next_try_runs(api, mode, runs):
    api.client.raise_request_exception = False

    failed = api.then("boom")
    # What was wrong has been put right; the request is the same.
    body = {"name": "first", "then": "boom"}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(THEN, "boom", created)
        repaired, again = api(body), api(body)

    assert failed.status_code == 500
    assert (repaired.status_code, replayed(repaired)) == (201, False)
    assert replayed(again)
    assert len(runs) == 2


@WAYS
def test_R58_exception_out_of_a_broken_transaction(api, mount, mode, atomic_requests, runs):
    class Breaking(EffectView):
        def handle_exception(self, exc: Exception) -> Any:
            raise RuntimeError("boom") from exc

    url = mount(Breaking)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^boom$"):
            api.then("broken", path=url)

    assert IdempotencyRecord.objects.get().state == "FAILED"
    assert len(runs) == 2


@WAYS
def test_R58_failure_that_cannot_be_written_masks_nothing(
    api, policy, mode, atomic_requests, caplog
):
    policy(BACKEND="tests.unit.http.stores.CannotEnd")

    with pytest.raises(RuntimeError, match=r"^boom$"):
        api.then("boom")

    [logged] = [record for record in caplog.records if record.name == "django_idempotency"]
    assert logged.levelno == logging.ERROR
    assert Effect.objects.count() == (mode == "separate" and not atomic_requests)


@WAYS
@pytest.mark.parametrize(("then", "status"), [("invalid", 400), ("returned", 500)])
def test_R58_answer_is_given_although_its_end_cannot_be_written(
    api, policy, mode, atomic_requests, then, status
):
    policy(BACKEND="tests.unit.http.stores.CannotEnd")

    response = api.then(then, status=status)

    assert response.status_code == status
    assert not replayed(response)
    assert Effect.objects.count() == (mode == "separate" and not atomic_requests)


def test_R58_idempotent_calls_of_the_work_keep_their_own_errors(api, mount):
    """An error about another key is the view's to answer, and no problem of this request's."""

    class Nested(BareView):
        def post(self, request: Request) -> Response:
            for payload in (1, 2):
                idempotency.run(lambda lease: None, key="inner", scope="test", payload=payload)
            return Response({})

    with pytest.raises(idempotency.FingerprintMismatch):
        api(path=mount(Nested))


@OPEN
def test_R58_hook_that_raises_after_the_commit(api, mode, runs):
    with pytest.raises(RuntimeError, match=r"^boom in a hook$"):
        api.then("hook_boom")
    seen_by_others = state_seen_by_others()
    again = api.then("hook_boom")

    assert seen_by_others == "COMPLETED"
    assert (again.status_code, replayed(again)) == (201, True)
    assert Effect.objects.count() == len(runs) == 1


@pytest.mark.parametrize("mode", ["separate"], indirect=True)
@pytest.mark.parametrize("atomic_requests", [True], indirect=True)
@pytest.mark.parametrize("store", ["default", "memory"])
def test_R58_hook_that_raises_after_the_commit_of_atomic_requests(
    api, mount, mode, atomic_requests, runs, store
):
    url = mount(type("Stored", (EffectView,), {"idempotency_store": store}))

    with pytest.raises(RuntimeError, match=r"^boom in a hook$"):
        api.then("hook_boom", path=url)
    again = api.then("hook_boom", path=url)

    assert (again.status_code, replayed(again)) == (201, True)
    assert Effect.objects.count() == len(runs) == 1


@BOTH
@pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)
@pytest.mark.parametrize("atomic_requests", [True], indirect=True)
@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
def test_R58_R90_hook_that_raises_on_one_database_rolls_no_other_back(
    api, mount, monkeypatch, mode, atomic_requests, key
):
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)
    hooks: list[str] = []

    def boom() -> None:
        raise RuntimeError("boom in a hook")

    def answer(request: Request) -> Response:
        Effect.objects.using("other").create(name="half")
        transaction.on_commit(lambda: hooks.append("default"))
        transaction.on_commit(boom, using="other")
        return Response(status=201)

    url = mount(answering(answer, idempotency_required=False))

    with pytest.raises(RuntimeError, match=r"^boom in a hook$"):
        api(path=url, key=key)

    assert [Effect.objects.using(using).count() for using in ("default", "other")] == [1, 1]
    assert hooks == ["default"]
    assert not key or replayed(api(path=url, key=key))


# R59: persisted before sent.

passed: list[tuple[int, str | None]] = []


def looking(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Any:
    """A middleware that looks, from another session, when a response passes on its way out."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        passed.append((response.status_code, state_seen_by_others()))
        return response

    return middleware


@pytest.mark.parametrize(
    ("mode", "then", "status", "state"),
    [
        ("single", "created", 201, "COMPLETED"),
        ("joined", "created", 201, "COMPLETED"),
        ("separate", "created", 201, "COMPLETED"),
        ("joined", "stream", 200, "COMPLETED"),
        ("joined", "invalid", 400, "RELEASED"),
        ("separate", "invalid", 400, "RELEASED"),
        ("joined", "returned", 500, "FAILED"),
        ("separate", "returned", 500, "FAILED"),
    ],
    indirect=["mode"],
)
def test_R59_record_is_committed_before_the_response_is_sent(
    api, settings, mode, then, status, state
):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.looking"]
    passed.clear()

    api.then(then, status=status)

    assert passed == [(status, state)]


def test_R59_replays_need_nothing_but_the_record(api, mode, runs):
    first = api()
    connections.close_all()

    assert api().content == first.content
    assert len(runs) == 1


# R60: the completion cannot be written.


@OPEN
@pytest.mark.parametrize(("then", "status"), [("created", 201), ("returned", 409)])
def test_R60_work_that_cannot_be_completed_is_rolled_back(api, policy, mode, runs, then, status):
    policy(BACKEND="tests.unit.http.stores.CannotComplete")
    refused = api.then(then, status=status)
    effects = Effect.objects.count()

    policy(BACKEND=WORKING)
    retried, again = (api.then(then, status=status) for _ in range(2))

    assert problem(refused) == UNAVAILABLE
    assert refused.headers["Retry-After"] == "1"
    assert effects == 0
    assert (retried.status_code, replayed(retried)) == (status, False)
    assert replayed(again)
    assert Effect.objects.count() == 1
    assert len(runs) == 2


@OPEN
def test_R60_raised_answer_that_cannot_be_kept_is_503(api, policy, mode, runs):
    policy(BACKEND="tests.unit.http.stores.CannotComplete")
    refused = api.then("raised", status=409)

    policy(BACKEND=WORKING)
    retried = api.then("raised", status=409)

    assert problem(refused) == UNAVAILABLE
    assert (retried.status_code, replayed(retried)) == (409, False)
    assert not Effect.objects.exists()
    assert len(runs) == 2


@JOINED
@pytest.mark.parametrize(
    ("store", "state"), [("CannotComplete", "RELEASED"), ("CannotEnd", "IN_PROGRESS")]
)
def test_R60_release_frees_the_key_at_once_or_else_the_lease_lapses(
    api, policy, mode, store, state
):
    policy(BACKEND=f"tests.unit.http.stores.{store}")

    assert problem(api()) == UNAVAILABLE
    assert state_seen_by_others() == state
    assert not Effect.objects.exists()


@pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)
def test_R60_record_that_is_gone_was_not_taken_over(api, policy, mode):
    def delete(sender: Any, **kwargs: Any) -> None:
        IdempotencyRecord.objects.all().delete()

    policy(BACKEND="tests.unit.http.stores.Vanishing")
    if mode == "separate":
        post_save.connect(delete, sender=Effect)
    try:
        first = api()
    finally:
        post_save.disconnect(delete, sender=Effect)
    effects = Effect.objects.count()

    policy(BACKEND=WORKING)
    retried, again = api(), api()

    if mode == "joined":
        assert (problem(first), effects) == (UNAVAILABLE, 0)
    else:
        assert (first.status_code, first.headers["Idempotency-Stored"]) == (201, "false")
    assert (retried.status_code, replayed(retried), replayed(again)) == (201, False, True)


@JOINED
def test_R57_R60_refusal_whose_record_is_gone_has_not_lost_its_lease(api, policy, mode):
    policy(BACKEND="tests.unit.http.stores.Vanishing")

    assert problem(api.then("returned", status=400)) == UNAVAILABLE
    assert not Effect.objects.exists()


@pytest.mark.parametrize("mode", ["separate"], indirect=True)
@pytest.mark.parametrize(("then", "status"), [("created", 201), ("raised", 409)])
def test_R60_separate_gives_the_response_and_says_so(api, policy, mode, runs, caplog, then, status):
    policy(BACKEND="tests.unit.http.stores.CannotComplete")

    response = api.then(then, status=status)
    retry = api.then(then, status=status)

    assert response.status_code == status
    assert response.headers["Idempotency-Stored"] == "false"
    assert [r.levelno for r in caplog.records if r.name == "django_idempotency"] == [logging.ERROR]
    assert state_seen_by_others() == "IN_PROGRESS"
    assert problem(retry) == (409, "in_progress")
    assert len(runs) == 1


# R61: the store is down at the claim.


@pytest.fixture
def store_is_down(
    transactional_db: None, policy: SetPolicy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The store's database is not there; the project's own is."""
    store = connections["other"]
    store.close()
    with monkeypatch.context() as patch:
        patch.setitem(store.settings_dict, "NAME", f"{store.settings_dict['NAME']}/gone")
        policy(OPTIONS={"using": "other"})
        yield
    store.close()


@BOTH
@pytest.mark.usefixtures("store_is_down")
def test_R61_store_down_at_the_claim_is_503(api, mode, runs):
    response = api()

    assert problem(response) == UNAVAILABLE
    assert response.json()["retryable"] is True
    assert int(response.headers["Retry-After"]) >= 1
    assert response.headers["Cache-Control"] == "no-store"
    assert runs == []
    assert not connection.in_atomic_block


@BOTH
@pytest.mark.usefixtures("store_is_down")
def test_R61_R90_requests_without_a_key_do_not_need_the_store_unless_they_join_it(api, mode, runs):
    first = api(key=None, path="/optional/")

    assert api(method="GET", body="").status_code == 200
    if mode == "separate":
        assert first.status_code == 201
        assert runs == ["first"]
    else:
        assert problem(first) == UNAVAILABLE
        assert runs == []


# R95: what a store gives back is input.


def test_R95_forged_record_of_the_database(api, caplog):
    each_is_a_503(api, lambda result: IdempotencyRecord.objects.update(result=result), caplog)


def test_R95_empty_fingerprint_of_the_database(api):
    api()
    IdempotencyRecord.objects.update(fingerprint=b"")

    assert problem(api()) == UNAVAILABLE


def test_R95_forged_record_in_memory(api, policy, caplog):
    policy(BACKEND="django_idempotency.stores.memory.MemoryStore")
    store = store_for("default")
    assert isinstance(store, MemoryStore)

    def write(result: bytes) -> None:
        [(record_id, record)] = store._records.items()
        store._records[record_id] = replace(record, result=result)

    each_is_a_503(api, write, caplog)


@pytest.mark.parametrize("name", ["cut short", "newer", "foreign codec", "NUL"])
def test_R95_forged_result_of_a_call_is_a_StoreError(name):
    def call() -> object:
        return idempotency.run(lambda lease: {"a": 1}, key="k", scope="s").result

    assert call() == {"a": 1}
    IdempotencyRecord.objects.update(result=FORGED[name])

    with pytest.raises(StoreError, match="The stored result"):
        call()
