"""Section F, R58 to R61, R95: exceptions, a store that fails, and one that gives back nonsense."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections, transaction
from rest_framework.request import Request
from rest_framework.response import Response

import django_idempotency as idempotency
from django_idempotency import StoreError
from django_idempotency.exceptions import SessionLost
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import THEN, EffectView, created
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.http.views import (
    BESIDE,
    OPEN,
    UNAVAILABLE,
    WAYS,
    answering,
    state_seen_by_others,
)

pytestmark = pytest.mark.django_db(transaction=True)
BOTH = pytest.mark.django_db(transaction=True, databases=["default", "other"])
ATOMIC = pytest.mark.parametrize("atomic_requests", [True], indirect=True)
WORKING = "django_idempotency.stores.database.DatabaseStore"
#: What these stores cannot do, they fail to do with an error of the database.
CANNOT_COMPLETE = "tests.unit.http.stores.CannotComplete"
CANNOT_END = "tests.unit.http.stores.CannotEnd"

# R58: exceptions.


def test_R58_next_try_runs(api, monkeypatch, runs):
    api.client.raise_request_exception = False

    failed = api.then("boom")
    monkeypatch.setitem(THEN, "boom", created)  # what was wrong has been put right
    repaired, again = api.then("boom"), api.then("boom")

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


@pytest.mark.parametrize(("then", "status"), [("invalid", 400), ("returned", 500)])
def test_R58_answer_is_given_although_its_end_cannot_be_written(api, policy, mode, then, status):
    policy(BACKEND=CANNOT_END)

    response = api.then(then, status=status)

    assert (response.status_code, replayed(response)) == (status, False)
    assert Effect.objects.count() == (mode == "separate")


@OPEN
def test_R58_hook_that_raises_after_the_commit(api, mode, runs):
    with pytest.raises(RuntimeError, match=r"^boom in a hook$"):
        api.then("hook_boom")
    seen_by_others = state_seen_by_others()
    again = api.then("hook_boom")

    assert seen_by_others == "COMPLETED"
    assert (again.status_code, replayed(again)) == (201, True)
    assert Effect.objects.count() == len(runs) == 1


@ATOMIC
@pytest.mark.parametrize("store", ["default", "memory"])
def test_R58_hook_that_raises_after_the_commit_of_atomic_requests(
    api, mount, policy, atomic_requests, runs, store
):
    policy(TRANSACTION="separate")
    url = mount(type("Stored", (EffectView,), {"idempotency_store": store}))

    with pytest.raises(RuntimeError, match=r"^boom in a hook$"):
        api.then("hook_boom", path=url)
    again = api.then("hook_boom", path=url)

    assert (again.status_code, replayed(again)) == (201, True)
    assert Effect.objects.count() == len(runs) == 1


@BOTH
@ATOMIC
@pytest.mark.parametrize(
    ("mode", "key"),
    [("joined", "key-1"), ("joined", None), ("separate", "key-1")],
    indirect=["mode"],
)
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


# R60: the completion cannot be written.


@OPEN
@pytest.mark.parametrize(("then", "status"), [("created", 201), ("returned", 409), ("raised", 409)])
def test_R60_work_that_cannot_be_completed_is_rolled_back(api, policy, mode, runs, then, status):
    policy(BACKEND=CANNOT_COMPLETE)
    refused = api.then(then, status=status)
    effects = Effect.objects.count()

    policy(BACKEND=WORKING)
    retried, again = (api.then(then, status=status) for _ in range(2))

    assert problem(refused) == UNAVAILABLE
    assert refused.headers["Retry-After"] == "1"
    assert effects == 0
    assert (retried.status_code, replayed(retried)) == (status, False)
    assert replayed(again)
    assert Effect.objects.count() == (then != "raised")
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("store", "state"), [(CANNOT_COMPLETE, "RELEASED"), (CANNOT_END, "IN_PROGRESS")]
)
def test_R60_release_frees_the_key_at_once_or_else_the_lease_lapses(api, policy, store, state):
    policy(BACKEND=store)

    assert problem(api()) == UNAVAILABLE
    assert state_seen_by_others() == state
    assert not Effect.objects.exists()


@pytest.mark.parametrize(("then", "status"), [("created", 201), ("raised", 409)])
def test_R60_separate_gives_the_response_and_says_so(api, policy, runs, caplog, then, status):
    policy(BACKEND=CANNOT_COMPLETE, TRANSACTION="separate")

    response, retry = api.then(then, status=status), api.then(then, status=status)

    assert response.status_code == status
    assert response.headers["Idempotency-Stored"] == "false"
    assert [r.levelno for r in caplog.records if r.name == "django_idempotency"] == [logging.ERROR]
    assert state_seen_by_others() == "IN_PROGRESS"
    assert problem(retry) == (409, "in_progress")
    assert len(runs) == 1


@ATOMIC
def test_R60_R79_session_that_the_work_has_lost_is_an_error_of_the_log(
    api, policy, atomic_requests, monkeypatch, caplog
):
    """The engine takes what is raised within the work for an error of the work."""
    policy(TRANSACTION="separate")

    def lost(connection: Any) -> bool:
        raise SessionLost

    monkeypatch.setattr("django_idempotency.http.atomic_requests.is_rolled_back", lost)

    assert problem(api()) == UNAVAILABLE
    [line] = [r for r in caplog.records if r.name == "django_idempotency"]
    assert line.outcome == "store unavailable"


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
    assert runs == []
    assert not connection.in_atomic_block


@BOTH
@BESIDE
@pytest.mark.usefixtures("store_is_down")
def test_R61_R90_requests_without_a_key_do_not_need_the_store_unless_they_join_it(api, mode, runs):
    first = api(key=None, path="/optional/")

    assert api(method="GET", body="").status_code == 200
    assert first.status_code == (201 if mode == "separate" else 503)
    assert runs == (["first"] if mode == "separate" else [])


# R95: what a store gives back is input.


def forged(payload: bytes, *, codec: bytes = b"http", flags: int = 0) -> bytes:
    """Return an envelope, in the form that guards write."""
    return bytes((1, flags, len(codec))) + codec + payload


def response(status: Any = 200, *headers: Any) -> bytes:
    """Return the payload of a response."""
    head = json.dumps({"status": status, "headers": headers}).encode()
    return len(head).to_bytes(4, "big") + head + b"forged"


FORGED = {
    "cut short": b"\x01",
    "newer": b"\x09\x00\x04http",
    "no JSON": forged(b"\x00\x00\x00\x02{]"),
    "deep": forged(b"\x00\x01\x86\xa0" + b"[" * 100_000),
    "huge, it says": forged(b"\xff\xff\xff\xff{}"),
    "huge, inflated": forged(zlib.compress(b" " * 2**24), flags=1),
    "status": forged(response(1000)),
    "interim response": forged(response(103)),
    "header injection": forged(response(200, ["Location", "/\r\nSet-Cookie: a=b"])),
    "file of the server": forged(response(200, ["X-Accel-Redirect", "/private/"])),
    "foreign codec": forged(b"\x80\x04N.", codec=b"pickle"),
    "NUL": b"\0" * 64,
}


def test_R95_forged_record_of_the_database(api, caplog):
    first = api()
    for name, envelope in FORGED.items():
        IdempotencyRecord.objects.update(result=envelope)
        caplog.clear()
        refused = api()
        assert problem(refused) == UNAVAILABLE, name
        [line] = [x for x in caplog.records if x.name == "django_idempotency"]
        assert line.levelno == logging.ERROR
        said = ("The stored result was written by", "The stored result is damaged")
        assert any(reason in line.getMessage() for reason in said), name
        assert "forged" not in caplog.text
    only_too_much = forged(response(202, ["Set-Cookie", "session=x"], ["ETag", '"1"']))
    IdempotencyRecord.objects.update(result=only_too_much)
    again = api()

    assert first.status_code == 201
    assert (again.status_code, again.content, replayed(again)) == (202, b"forged", True)
    assert again["ETag"] == '"1"'
    assert not again.cookies
    assert Effect.objects.count() == 1


def test_R95_empty_fingerprint_of_the_database(api):
    api()
    IdempotencyRecord.objects.update(fingerprint=b"")

    assert problem(api()) == UNAVAILABLE


@pytest.mark.parametrize("name", ["cut short", "foreign codec"])
def test_R95_forged_result_of_a_call_is_a_StoreError(name):
    def call() -> object:
        return idempotency.run(lambda lease: {"a": 1}, key="k", scope="s").result

    assert call() == {"a": 1}
    IdempotencyRecord.objects.update(result=FORGED[name])

    with pytest.raises(StoreError, match="The stored result"):
        call()
