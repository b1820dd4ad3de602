"""A table that turns requests away: bridged for a while, then 503 with Retry-After."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb_client import TRANSIENT
from tests.app.models import Effect
from tests.app.views import THEN, created
from tests.integration.dynamodb.claims import HOUR, asked, found, won
from tests.integration.dynamodb.conftest import Options
from tests.integration.dynamodb.throttle import Throttle
from tests.unit.http.api import Api, problem, replayed

BACKEND = "django_idempotency.stores.dynamodb.DynamoDBStore"


@pytest.fixture
def throttle(url: str) -> Iterator[Throttle]:
    with Throttle(url) as throttle:
        yield throttle


@pytest.fixture
def store(options: Options, throttle: Throttle) -> DynamoDBStore:
    return DynamoDBStore(**options(endpoint_url=throttle.url, timeout=4))


@pytest.mark.parametrize("error", sorted(TRANSIENT))
def test_short_trouble_is_bridged(store: DynamoDBStore, throttle: Throttle, error: str) -> None:
    throttle.begin(times=2, error=error)

    won(store.claim(asked()))

    assert throttle.refused == 2
    assert found(store).attempts == 1


def test_server_error_without_a_known_name_is_bridged(
    store: DynamoDBStore, throttle: Throttle
) -> None:
    throttle.begin(times=2, error="Whatever", status=500)

    won(store.claim(asked()))

    assert throttle.refused == 2


def test_long_trouble_is_an_error_within_the_timeout(options: Options, throttle: Throttle) -> None:
    store = DynamoDBStore(**options(endpoint_url=throttle.url, timeout=1))
    throttle.begin()
    begun = time.monotonic()

    with pytest.raises(StoreError, match="ProvisionedThroughputExceededException"):
        store.claim(asked())

    assert time.monotonic() - begun < 1 + 0.4
    assert throttle.refused > 1


@pytest.mark.parametrize("error", ["ValidationException", "AccessDeniedException"])
def test_what_does_not_pass_by_itself_is_an_error_at_once(
    store: DynamoDBStore, throttle: Throttle, error: str
) -> None:
    throttle.begin(error=error)

    with pytest.raises(StoreError, match=error):
        store.claim(asked())

    assert throttle.refused == 1


def test_throttled_completion_is_bridged(store: DynamoDBStore, throttle: Throttle) -> None:
    lease = won(store.claim(asked()))
    throttle.begin(times=2)

    store.complete(lease, b"done", retention=HOUR)

    assert throttle.refused == 2
    assert found(store).state is State.COMPLETED


@pytest.mark.django_db(transaction=True)
class TestThreeSeconds:
    """Longer than the store's timeout of 2 s."""

    @pytest.fixture
    def api(self, settings: Any, options: Options, throttle: Throttle) -> Api:
        given = options(endpoint_url=throttle.url, timeout=2)
        settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": given}}
        return Api()

    def test_R61_claims_are_503_with_retry_after_and_nothing_is_lost(
        self, api: Api, throttle: Throttle
    ) -> None:
        throttle.begin(seconds=3)
        answers = [api()]
        while answers[-1].status_code == 503:
            time.sleep(int(answers[-1].headers["Retry-After"]))
            answers.append(api())

        *refused, first = answers
        assert refused
        assert {problem(response)[0] for response in refused} == {503}
        assert (first.status_code, replayed(first)) == (201, False)
        assert replayed(api())
        assert Effect.objects.count() == 1

    def test_R60_work_whose_completion_is_throttled_is_answered_and_not_run_meanwhile(
        self, api: Api, throttle: Throttle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def begins(request: Any, effect: Effect) -> Any:
            throttle.begin(seconds=3)
            return created(request, effect)

        monkeypatch.setitem(THEN, "created", begins)

        first = api()
        throttle.end()
        again = api()

        assert first.status_code == 201
        assert first.headers["Idempotency-Stored"] == "false"
        assert problem(again) == (409, "in_progress")
        assert Effect.objects.count() == 1
