"""Views, `run`, `attempt` and coroutines on the DynamoDB store."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import pytest
from django.db import connections, transaction

import django_idempotency as idempotency
from django_idempotency.conf import store_for
from django_idempotency.exceptions import FingerprintMismatch, InProgress
from django_idempotency.keys import record_id
from django_idempotency.records import State
from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.app.models import Effect
from tests.app.views import THEN, created
from tests.integration.dynamodb.conftest import Options
from tests.integration.dynamodb.wire import Wire
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.forged import each_is_a_503

BACKEND = "django_idempotency.stores.dynamodb.DynamoDBStore"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["moto", "dynalite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def default_store(settings: Any, options: Options) -> DynamoDBStore:
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options()}}
    store = store_for("default")
    assert isinstance(store, DynamoDBStore)
    return store


def test_R95_forged_item(default_store: DynamoDBStore, caplog: pytest.LogCaptureFixture) -> None:
    def write(result: bytes) -> None:
        [record] = default_store.browse().records
        item = default_store.table.item(record.record_id)
        assert item is not None
        item["responsePayload"] = {"B": result}
        table = default_store.table
        table.client.send("put_item", {"TableName": table.name, "Item": item})

    each_is_a_503(Api(), write, caplog)


class TestViews:
    @pytest.fixture(params=[False, True], ids=["autocommit", "atomic_requests"])
    def atomic_requests(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> bool:
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)
        return bool(request.param)

    def test_R25_again_is_a_replay(self, atomic_requests: bool) -> None:
        api = Api()

        first, again = api(), api()

        assert (first.status_code, replayed(first)) == (201, False)
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert replayed(again)
        assert again.headers["Location"] == first.headers["Location"]
        assert Effect.objects.count() == 1

    def test_R37_other_body_is_422(self) -> None:
        api = Api()
        api()

        assert problem(api({"name": "other"})) == (422, "idempotency_key_reused")

    def test_R49_duplicate_of_a_running_request_is_409(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[Any] = []

        def asks_again(request: Any, effect: Effect) -> Any:
            told.append(Api()())
            return created(request, effect)

        monkeypatch.setitem(THEN, "created", asks_again)

        Api()()

        assert problem(told[0]) == (409, "in_progress")
        assert told[0].headers["Retry-After"] == "1"

    def test_R57_kept_error_is_kept_without_its_work(self, atomic_requests: bool) -> None:
        api = Api()

        first, again = api.then("raised", status=409), api.then("raised", status=409)

        assert (first.status_code, again.status_code) == (409, 409)
        assert replayed(again)
        assert Effect.objects.count() == (0 if atomic_requests else 1)

    def test_R58_failed_request_runs_again(self) -> None:
        api = Api()
        api.client.raise_request_exception = False

        assert [api.then("boom").status_code for _ in range(2)] == [500, 500]

        assert Effect.objects.count() == 2

    def test_R57_success_whose_commit_fails_is_not_completed(
        self, monkeypatch: pytest.MonkeyPatch, default_store: DynamoDBStore
    ) -> None:
        """The record is completed after the commit of ATOMIC_REQUESTS, never before."""
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
        api = Api()
        api.client.raise_request_exception = False

        assert api.then("deferred").status_code == 500

        [record] = default_store.browse().records
        assert record.state is State.FAILED
        assert Effect.objects.count() == 0


class TestRun:
    CALL: ClassVar[dict[str, Any]] = {"key": "k", "scope": "s"}
    RECORD = record_id("call", "s", "k")

    def test_R26_runs_once_and_replays(self, default_store: DynamoDBStore) -> None:
        wire = Wire(default_store)

        first = idempotency.run(lambda lease: {"paid": 5}, **self.CALL)
        again = idempotency.run(lambda lease: pytest.fail("ran"), **self.CALL)

        assert (first.result, first.replayed) == ({"paid": 5}, False)
        assert (again.result, again.replayed) == ({"paid": 5}, True)
        assert wire.taken()[:3] == ["UpdateItem"] * 3

    def test_R37_other_payload_is_a_mismatch(self) -> None:
        idempotency.run(lambda lease: 1, payload=1, **self.CALL)

        with pytest.raises(FingerprintMismatch):
            idempotency.run(lambda lease: 1, payload=2, **self.CALL)

    @pytest.mark.parametrize("result", [0, "", [], {}, None], ids=repr)
    def test_R64_falsy_results_replay(self, result: Any) -> None:
        for _ in range(2):
            outcome = idempotency.run(lambda lease: result, **self.CALL)

        assert (outcome.result, outcome.replayed) == (result, True)

    def test_R71_stale_record_waits_for_an_operator(self, default_store: DynamoDBStore) -> None:
        policy: dict[str, Any] = {"on_stale": "refuse", "lease": 0.001, "renew": False}
        default_store._skew *= 0  # the lease is over at once

        def crash(lease: Any) -> None:
            raise KeyboardInterrupt

        default_store.fail = lambda *args: None  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            idempotency.run(crash, **self.CALL, **policy)

        with pytest.raises(InProgress) as busy:
            idempotency.run(lambda lease: pytest.fail("ran"), **self.CALL, **policy)
        assert busy.value.stale
        record = default_store.get(self.RECORD)
        assert record is not None
        assert record.expires_at is None

    def test_completion_waits_for_the_callers_commit(self, default_store: DynamoDBStore) -> None:
        with transaction.atomic():
            idempotency.run(lambda lease: 1, **self.CALL)
            during = default_store.get(self.RECORD)
        after = default_store.get(self.RECORD)

        assert during is not None
        assert during.state is State.IN_PROGRESS
        assert after is not None
        assert after.state is State.COMPLETED


class TestCoroutines:
    def test_R26_runs_once_and_replays(self) -> None:
        async def pay(lease: Any) -> str:
            return "paid"

        async def main() -> list[Any]:
            call: dict[str, Any] = {"key": "k", "scope": "s"}
            return [await idempotency.arun(pay, **call) for _ in range(2)]

        first, again = asyncio.run(main())

        assert (first.replayed, again.replayed, again.result) == (False, True, "paid")

    def test_calls_of_coroutines_do_not_wait_for_each_other(
        self, default_store: DynamoDBStore
    ) -> None:
        """Four claims are on the wire at the same moment, or none of them arrives."""
        together = threading.Barrier(4)
        events = default_store.table.client.native.meta.events

        def meet(**kwargs: Any) -> None:
            together.wait(20)

        async def pay(lease: Any) -> str:
            return "paid"

        async def main() -> list[Any]:
            events.register("before-send.dynamodb.UpdateItem", meet)
            calls = (idempotency.arun(pay, key=str(number), scope="s") for number in range(4))
            return await asyncio.gather(*calls)

        assert [outcome.result for outcome in asyncio.run(main())] == ["paid"] * 4
