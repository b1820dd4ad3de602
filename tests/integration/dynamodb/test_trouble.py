"""Servers that turn calls away, miss them or do not answer: bridged for a while, then an error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.app.models import Effect
from tests.integration.dynamodb.claims import HOUR, asked, found, operation, won
from tests.integration.dynamodb.conftest import BACKEND, Options
from tests.integration.dynamodb.throttle import Throttle
from tests.services.proxy import Proxy
from tests.unit.http.api import Api, problem, replayed


@pytest.fixture
def throttle(url: str) -> Iterator[Throttle]:
    with Throttle(url) as throttle:
        yield throttle


class TestThrottled:
    @pytest.fixture
    def store(self, options: Options, throttle: Throttle) -> DynamoDBStore:
        return DynamoDBStore(**options(endpoint_url=throttle.url, timeout=4))

    @pytest.mark.parametrize(
        ("error", "status"),
        [
            ("ProvisionedThroughputExceededException", 400),
            ("ThrottlingException", 400),
            ("TransactionConflictException", 400),
            ("Whatever", 500),
        ],
    )
    def test_short_trouble_is_bridged(
        self, store: DynamoDBStore, throttle: Throttle, error: str, status: int
    ) -> None:
        throttle.begin(times=2, error=error, status=status)

        won(store.claim(asked()))

        assert throttle.refused == 2
        assert found(store).attempts == 1

    def test_long_trouble_is_an_error_within_the_timeout(
        self, options: Options, throttle: Throttle
    ) -> None:
        store = DynamoDBStore(**options(endpoint_url=throttle.url, timeout=1))
        throttle.begin()
        begun = time.monotonic()

        with pytest.raises(StoreError, match="ProvisionedThroughputExceededException"):
            store.claim(asked())

        assert time.monotonic() - begun < 1 + 0.4
        assert throttle.refused > 1

    @pytest.mark.parametrize("error", ["ValidationException", "AccessDeniedException"])
    def test_what_does_not_pass_by_itself_is_an_error_at_once(
        self, store: DynamoDBStore, throttle: Throttle, error: str
    ) -> None:
        throttle.begin(error=error)

        with pytest.raises(StoreError, match=error):
            store.claim(asked())

        assert throttle.refused == 1

    @pytest.mark.django_db(transaction=True)
    def test_R61_view_is_503_with_retry_after_and_nothing_is_lost(
        self, settings: Any, options: Options, throttle: Throttle
    ) -> None:
        given = options(endpoint_url=throttle.url, timeout=1)
        settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": given}}
        api = Api()
        throttle.begin()

        refused = api()
        throttle.end()
        first, again = api(), api()

        assert problem(refused) == (503, "store_unavailable")
        assert int(refused["Retry-After"]) >= 1
        assert (first.status_code, replayed(first), replayed(again)) == (201, False, True)
        assert Effect.objects.count() == 1


class TestNoAnswer:
    TIMEOUT = 0.6

    @pytest.fixture
    def link(self, proxied: tuple[Proxy, str]) -> Proxy:
        return proxied[0]

    @pytest.fixture
    def store(self, options: Options, proxied: tuple[Proxy, str]) -> DynamoDBStore:
        store = DynamoDBStore(**options(endpoint_url=proxied[1], timeout=self.TIMEOUT))
        won(store.claim(asked("before")))  # its connection is open
        return store

    def test_I5_R26_work_runs_once_when_the_answer_to_its_claim_is_lost(
        self, store: DynamoDBStore, link: Proxy
    ) -> None:
        runs: list[object] = []
        # Of the body, which goes out after the head: the server has it all.
        link.cut_after(b'"UpdateExpression"')

        outcomes = [Engine(store).run(operation(), runs.append) for _ in range(2)]

        assert link.fired.is_set()
        assert (len(runs), [outcome.replayed for outcome in outcomes]) == (1, [False, True])

    def test_call_that_the_server_missed_is_sent_again(
        self, store: DynamoDBStore, link: Proxy
    ) -> None:
        link.cut_before(b'"UpdateExpression"')

        won(store.claim(asked()))

        assert link.fired.wait(5)
        assert found(store).attempts == 1

    @pytest.mark.parametrize("how", ["refuse", "swallow"])
    def test_R61_claim_is_an_error_within_the_timeout(
        self, store: DynamoDBStore, link: Proxy, how: str
    ) -> None:
        getattr(link, how)()
        if how == "refuse":
            link.cut()
        begun = time.monotonic()

        with pytest.raises(StoreError) as raised:
            store.claim(asked())

        assert time.monotonic() - begun < self.TIMEOUT + 0.4
        assert raised.value.__cause__ is not None

    def test_R69_renewal_that_no_server_answers_loses_no_lease_and_costs_one_timeout(
        self, store: DynamoDBStore, link: Proxy
    ) -> None:
        leases = {won(store.claim(asked(key))) for key in ("one", "two")}
        link.swallow()
        begun = time.monotonic()

        with pytest.raises(StoreError):
            store.renew(leases, HOUR)

        assert time.monotonic() - begun < self.TIMEOUT + 0.4
        link.heal()
        assert store.renew(leases, HOUR) == leases

    def test_R69_renewal_that_reaches_the_server_for_some_holds_the_others(
        self, store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leases = [won(store.claim(asked(str(number)))) for number in range(3)]
        store.release(leases[0])
        send = store.table.update

        def update(statement: str, record_id: Any, values: Any, **more: Any) -> Any:
            if record_id == leases[1].record_id:
                raise StoreError
            return send(statement, record_id, values, **more)

        monkeypatch.setattr(store.table, "update", update)

        assert store.renew(leases, HOUR) == set(leases[1:])
