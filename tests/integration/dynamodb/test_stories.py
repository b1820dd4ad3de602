"""What a client sees of the DynamoDB store, and servers that turn calls away or do not answer."""

from __future__ import annotations

import time

import pytest

from django_idempotency.conf import store_for
from django_idempotency.exceptions import StoreError
from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.app.models import Effect
from tests.claims import HOUR, asked, found, won
from tests.integration.dynamodb.conftest import BACKEND
from tests.integration.dynamodb.wire import Throttle
from tests.integration.stories import HTTPStory, ServerStory
from tests.unit.http.api import Api, problem, replayed


class TestHTTP(HTTPStory):
    @pytest.fixture
    def api(self, settings, options, link_url):
        given = options(endpoint_url=link_url, timeout=4)
        settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": given}}
        api = Api()
        api.client.raise_request_exception = False
        return api


class TestServer(ServerStory):
    CLAIM = b'"UpdateExpression"'  # of the body, which goes out after the head

    @pytest.fixture
    def make_linked(self, options, link_url):
        given = options(endpoint_url=link_url)
        return lambda timeout: DynamoDBStore(**{**given, "timeout": timeout})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("ProvisionedThroughputExceededException", 400),
        ("TransactionConflictException", 400),
        ("Whatever", 500),
    ],
)
def test_short_trouble_is_bridged(store, error, status):
    throttle = Throttle(store, error, status=status, times=2)

    won(store.claim(asked()))

    assert throttle.refused == 2
    assert found(store).attempts == 1


def test_long_trouble_is_an_error_within_the_timeout(make_store):
    store = make_store(timeout=1)
    throttle = Throttle(store)
    begun = time.monotonic()

    with pytest.raises(StoreError, match="ProvisionedThroughputExceededException"):
        store.claim(asked())

    assert time.monotonic() - begun < 1 + 5
    assert throttle.refused > 1


def test_R79_what_does_not_pass_by_itself_is_an_error_at_once_that_quotes_nothing(store):
    throttle = Throttle(store, "AccessDeniedException")

    with pytest.raises(StoreError) as raised:
        store.claim(asked("secret-key"))

    message = "The store could not send update_item to DynamoDB: AccessDeniedException."
    assert (str(raised.value), throttle.refused) == (message, 1)


@pytest.mark.django_db(transaction=True)
def test_R61_throttled_view_is_503_with_retry_after_and_nothing_is_lost(settings, options):
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options(timeout=4)}}
    api = Api()
    throttle = Throttle(store_for("default"))

    refused = api()
    throttle.end()
    first, again = api(), api()

    assert problem(refused) == (503, "store_unavailable")
    assert int(refused["Retry-After"]) >= 1
    assert (first.status_code, replayed(first), replayed(again)) == (201, False, True)
    assert Effect.objects.count() == 1


def test_R69_renewal_that_reaches_the_server_for_some_holds_the_others(store, monkeypatch):
    leases = [won(store.claim(asked(str(number)))) for number in range(3)]
    store.release(leases[0])
    send = store.table.update

    def update(statement, record_id, values, **more):
        if record_id == leases[1].record_id:
            raise StoreError
        return send(statement, record_id, values, **more)

    monkeypatch.setattr(store.table, "update", update)

    assert store.renew(leases, HOUR) == set(leases[1:])
