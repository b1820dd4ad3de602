"""Servers that turn calls away, miss them or do not answer: bridged for a while, then an error."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_idempotency.conf import store_for
from django_idempotency.exceptions import StoreError
from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.app.models import Effect
from tests.integration.dynamodb.claims import HOUR, asked, found, won
from tests.integration.dynamodb.conftest import BACKEND, MakeStore, Options
from tests.integration.dynamodb.throttle import Throttle
from tests.integration.stories import ServerStory
from tests.services.proxy import Proxy
from tests.unit.http.api import Api, problem, replayed


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("ProvisionedThroughputExceededException", 400),
        ("ThrottlingException", 400),
        ("TransactionConflictException", 400),
        ("Whatever", 500),
    ],
)
def test_short_trouble_is_bridged(store: DynamoDBStore, error: str, status: int) -> None:
    throttle = Throttle(store, error, status=status, times=2)

    won(store.claim(asked()))

    assert throttle.refused == 2
    assert found(store).attempts == 1


def test_long_trouble_is_an_error_within_the_timeout(make_store: MakeStore) -> None:
    store = make_store(timeout=0.6)
    throttle = Throttle(store)
    begun = time.monotonic()

    with pytest.raises(StoreError, match="ProvisionedThroughputExceededException"):
        store.claim(asked())

    assert time.monotonic() - begun < 0.6 + 0.4
    assert throttle.refused > 1


@pytest.mark.parametrize("error", ["ValidationException", "AccessDeniedException"])
def test_what_does_not_pass_by_itself_is_an_error_at_once(store: DynamoDBStore, error: str) -> None:
    throttle = Throttle(store, error)

    with pytest.raises(StoreError, match=error):
        store.claim(asked())

    assert throttle.refused == 1


@pytest.mark.django_db(transaction=True)
def test_R61_throttled_view_is_503_with_retry_after_and_nothing_is_lost(
    settings: Any, options: Options
) -> None:
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options(timeout=0.6)}}
    api, store = Api(), store_for("default")
    assert isinstance(store, DynamoDBStore)
    throttle = Throttle(store)

    refused = api()
    throttle.end()
    first, again = api(), api()

    assert problem(refused) == (503, "store_unavailable")
    assert int(refused["Retry-After"]) >= 1
    assert (first.status_code, replayed(first), replayed(again)) == (201, False, True)
    assert Effect.objects.count() == 1


def test_R69_renewal_that_reaches_the_server_for_some_holds_the_others(
    store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch
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


class TestServer(ServerStory):
    TIMEOUT = 1.5
    CLAIM = b'"UpdateExpression"'  # of the body, which goes out after the head

    @pytest.fixture
    def link(self, proxied: tuple[Proxy, str]) -> Proxy:
        return proxied[0]

    @pytest.fixture
    def store(self, options: Options, proxied: tuple[Proxy, str]) -> DynamoDBStore:
        store = DynamoDBStore(**options(endpoint_url=proxied[1], timeout=self.TIMEOUT))
        won(store.claim(asked("before")))
        return store
