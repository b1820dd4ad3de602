"""R61, R77: when an answer expires, and views that run although the store is down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import ClaimRequest, Lease, Record
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.database.atomic import Block
from django_idempotency.stores.memory import MemoryStore
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, SetPolicy

pytestmark = pytest.mark.django_db(transaction=True)

CLASS = "tests.unit.views.test_answers"


@pytest.fixture(params=["function", "async-function"])
def kind(request: pytest.FixtureRequest) -> str:
    """A view without a loop, and one on it: the guard has a path for each."""
    return str(request.param)


# R77: Idempotency-Expires.


def test_R77_kept_and_replayed_answers_say_when_they_expire(api: Api, policy: SetPolicy) -> None:
    policy(RETENTION=timedelta(hours=7))

    for then in ("created", "status"):
        first, again = (api.then(then, status=409, key=then) for _ in range(2))
        said = first.headers["Idempotency-Expires"]
        stored = IdempotencyRecord.objects.get(key=then).expires_at

        assert (again.headers["Idempotency-Expires"], replayed(again)) == (said, True)
        assert said.endswith(" GMT")
        assert stored is not None
        assert parsedate_to_datetime(said) == stored.replace(microsecond=0)
        hours = (stored - datetime.now(timezone.utc)) / timedelta(hours=1)
        assert 6.9 < hours <= 7


def test_R77_no_other_answer_says_so(api: Api, in_progress: InProgress) -> None:
    answers = [
        api.then("status", status=400),
        api.then("status", status=500, key="failed"),
        api(key=None),
        api(key=""),
        api(user=None),
        api.then("stream", key="stream"),
        api.then("stream", key="stream"),
        api("", method="GET"),
    ]
    IdempotencyRecord.objects.all().delete()
    api()
    answers.append(api({"name": "other"}))
    in_progress()
    answers.append(api())

    statuses = [answer.status_code for answer in answers]
    assert statuses == [400, 500, 201, 400, 400, 200, 409, 200, 422, 409]
    assert not any("Idempotency-Expires" in answer.headers for answer in answers)


# R61: fail_open.


@pytest.fixture
def store_is_down(policy: SetPolicy, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store's database is not there; the project's own is."""
    store = connections["other"]
    store.close()
    with monkeypatch.context() as patch:
        patch.setitem(store.settings_dict, "NAME", f"{store.settings_dict['NAME']}/gone")
        patch.setitem(connections.settings["other"], "NAME", f"{store.settings_dict['NAME']}/gone")
        policy(OPTIONS={"using": "other"}, HTTP={"FAIL_OPEN": True})
        yield
    store.close()


both = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@both
def test_R61_fail_open_runs_the_view_once_and_says_so(
    api: Api, store_is_down: None, runs: list[str]
) -> None:
    first = api()
    assert len(runs) == 1
    second = api()

    for answer in (first, second):
        assert answer.status_code == 201
        assert answer.headers["Idempotency-Stored"] == "false"
        assert "Idempotency-Expires" not in answer.headers
        assert "Idempotency-Replayed" not in answer.headers
    assert len(runs) == Effect.objects.count() == 2


@both
def test_R61_without_fail_open_it_is_503_with_its_cause_in_the_log(
    api: Api,
    policy: SetPolicy,
    store_is_down: None,
    runs: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy(HTTP={"FAIL_OPEN": False})

    answer = api()
    [line] = [line for line in caplog.records if line.name == "django_idempotency"]
    assert (line.levelname, line.alias) == ("ERROR", "default")  # type: ignore[attr-defined]
    assert isinstance(line.exc_info[1].__cause__, OperationalError)  # type: ignore[index,union-attr]

    assert problem(answer) == (503, "store_unavailable")
    assert int(answer.headers["Retry-After"]) >= 1
    assert runs == []


@both
def test_R61_fail_open_refuses_what_is_wrong_with_the_key(
    api: Api, policy: SetPolicy, store_is_down: None, runs: list[str]
) -> None:
    policy(HTTP={"REQUIRED": True})

    assert problem(api(key=None)) == (400, "idempotency_key_missing")
    assert problem(api(key="k" * 256)) == (400, "idempotency_key_invalid")
    assert problem(api(user=None)) == (400, "scope_missing")
    assert runs == []


@both
@pytest.mark.parametrize("kind", ["function", "class", "drf"], indirect=True)
def test_R61_R83_fail_open_passes_exceptions_on_and_keeps_atomic_requests(
    api: Api, store_is_down: None, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    with pytest.raises(RuntimeError, match=r"^boom$"):
        api.then("boom")

    assert len(runs) == 1
    assert not Effect.objects.exists()
    assert not connection.in_atomic_block


class NoWork(DatabaseStore):
    """The claim stands; the transaction of the work cannot be begun."""

    def atomic(self, *, committed: Callable[[], None] | None = None) -> Block:
        if transaction.get_connection(self.using).in_atomic_block:
            return super().atomic(committed=committed)
        raise StoreError("no transaction")


class NoCompletion(DatabaseStore):
    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        raise StoreError("no completion")


class SecondLookFails(DatabaseStore):
    """It can say that another attempt is at work, and then nothing more."""

    looks = 0

    def claim(self, request: ClaimRequest) -> Lease | Record:
        type(self).looks += 1
        if type(self).looks > 1:
            raise StoreError("gone")
        return super().claim(request)


@pytest.mark.parametrize(
    ("store", "mode", "begun"),
    [("NoWork", "joined", 0), ("NoCompletion", "joined", 1), ("NoCompletion", "single", 1)],
)
def test_R61_fail_open_never_after_the_claim(
    api: Api, policy: SetPolicy, runs: list[str], store: str, mode: str, begun: int
) -> None:
    """The claim has been written, so a second attempt may be on its way."""
    policy(BACKEND=f"{CLASS}.{store}", TRANSACTION=mode, HTTP={"FAIL_OPEN": True})

    assert problem(api()) == (503, "store_unavailable")
    assert len(runs) == begun
    assert not Effect.objects.exists()


def test_R61_fail_open_never_while_another_is_known_to_be_at_work(
    api: Api,
    policy: SetPolicy,
    in_progress: InProgress,
    monkeypatch: pytest.MonkeyPatch,
    runs: list[str],
) -> None:
    """A waiter has been told that the work is under way."""
    api()
    in_progress()
    monkeypatch.setattr(SecondLookFails, "looks", 0)
    policy(BACKEND=f"{CLASS}.SecondLookFails", WAIT=30, HTTP={"FAIL_OPEN": True})

    assert problem(api()) == (503, "store_unavailable")
    assert len(runs) == 1


class Down(MemoryStore):
    """Not the view's own store: one that its work asks, and that is out of reach."""

    def claim(self, request: ClaimRequest) -> Lease | Record:
        raise StoreError("down")


@pytest.fixture
def asks_another(api: Api, policy: SetPolicy, settings: Any) -> Api:
    """A view that fails open, and whose work asks a store that is down."""
    policy(HTTP={"FAIL_OPEN": True})
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "down": {"BACKEND": f"{CLASS}.Down"}}
    api.client.raise_request_exception = False
    return api


@pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)
def test_R61_fail_open_never_for_a_store_that_the_work_asks(
    asks_another: Api, mode: str, runs: list[str]
) -> None:
    """Its error is the view's own: the view has run."""
    answer = asks_another.then("nested")

    assert len(runs) == 1
    assert answer.status_code == 500
    assert "Idempotency-Stored" not in answer.headers
    assert IdempotencyRecord.objects.get().state == "FAILED"


@pytest.mark.parametrize("mode", ["single", "joined"], indirect=True)
def test_R61_fail_open_never_for_a_hook_of_the_work(
    mode: str, asks_another: Api, runs: list[str]
) -> None:
    answer, again = (asks_another.then("nested_later") for _ in range(2))

    assert len(runs) == Effect.objects.count() == 1
    assert (answer.status_code, again.status_code, replayed(again)) == (500, 201, True)


def test_R61_fail_open_is_off_by_default(api: Api, policy: SetPolicy, runs: list[str]) -> None:
    policy(BACKEND=f"{CLASS}.NoWork", TRANSACTION="joined")

    assert problem(api()) == (503, "store_unavailable")
    assert runs == []
