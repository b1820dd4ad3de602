"""The HTTP rules on the Redis store: work commits in the database first, the record after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.db import connection
from django.db.models.signals import post_save

from django_idempotency.conf import store_for
from django_idempotency.records import Record, State
from tests.app.models import Child, Effect
from tests.integration.redis.claims import asked
from tests.services.proxy import Proxy
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import atomic_requests, runs  # noqa: F401
from tests.unit.http.forged import each_is_a_503
from tests.unit.http.test_work import ROWS
from tests.unit.views.conftest import AsgiClient

pytestmark = pytest.mark.django_db(transaction=True)

#: Changes the policy of the default alias, whose store is in Redis.
Configure = Callable[..., None]

SYNCHRONOUS = ["/effects/", "/function/", "/class/"]
VIEWS = [*SYNCHRONOUS, "/async-function/"]


@pytest.fixture
def configure(settings: Any, prefix: str) -> Configure:
    def change(url: str, **policy: Any) -> None:
        settings.ROOT_URLCONF = "tests.integration.redis.views"
        settings.IDEMPOTENCY = {
            "default": {
                "BACKEND": "tests.integration.redis.views.Watched",
                "OPTIONS": {"url": url, "prefix": prefix, "timeout": 0.5},
                **policy,
            }
        }

    return change


@pytest.fixture
def api(configure: Configure, url: str) -> Api:
    configure(url)
    return Api()


def record() -> Record:
    """The one record that there is."""
    [found] = store_for("default").browse().records
    return found


# What the server gives back is input.


def test_R95_forged_record(
    api: Api, client: redis.Redis, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    def write(result: bytes) -> None:
        client.hset(f"{prefix}{record().record_id}", "result", result)

    each_is_a_503(api, write, caplog)


# First, replay, 409, 422, 400.


@pytest.mark.parametrize("path", VIEWS)
def test_R26_retry_is_a_replay_of_the_same_bytes(api: Api, version: str, path: str) -> None:
    first, again = api(path=path), api(path=path)
    assert (first.status_code, replayed(first)) == (201, False)
    assert (again.status_code, replayed(again)) == (201, True)
    assert again.content == first.content
    assert Effect.objects.count() == 1


def test_R26_under_ASGI(api: Api) -> None:
    api.client = AsgiClient()  # type: ignore[assignment]
    answers = [api(path="/async-function/") for _ in range(2)]
    assert [replayed(answer) for answer in answers] == [False, True]
    assert Effect.objects.count() == 1


@pytest.mark.parametrize("path", VIEWS)
def test_R37_other_body_is_422(api: Api, path: str) -> None:
    api(path=path)
    assert problem(api({"name": "second"}, path=path)) == (422, "idempotency_key_reused")
    assert Effect.objects.count() == 1


@pytest.mark.parametrize("path", VIEWS)
def test_R49_duplicate_of_a_live_attempt_is_409(api: Api, path: str) -> None:
    during: list[Any] = []

    def again(sender: Any, **kwargs: Any) -> None:
        during.append(Api()(path=path))

    post_save.connect(again, sender=Effect)
    try:
        first = api(path=path)
    finally:
        post_save.disconnect(again, sender=Effect)
    assert first.status_code == 201
    assert problem(during[0]) == (409, "in_progress")
    assert int(during[0].headers["Retry-After"]) >= 1


@pytest.mark.parametrize("path", VIEWS)
def test_R1_missing_key_is_400(api: Api, path: str) -> None:
    assert problem(api(path=path, key=None)) == (400, "idempotency_key_missing")


@pytest.mark.parametrize("path", VIEWS)
def test_R60_record_that_is_gone_in_mid_work_is_answered_and_not_stored(
    api: Api, client: redis.Redis, prefix: str, path: str
) -> None:
    def flush(sender: Any, **kwargs: Any) -> None:
        client.delete(*client.scan_iter(match=f"{prefix}*"))

    post_save.connect(flush, sender=Effect)
    try:
        first = api(path=path)
    finally:
        post_save.disconnect(flush, sender=Effect)
    retried, again = api(path=path), api(path=path)

    assert (first.status_code, first.headers["Idempotency-Stored"]) == (201, "false")
    assert (retried.status_code, replayed(retried), replayed(again)) == (201, False, True)


# The work and the record.


@pytest.mark.parametrize("name", ROWS)
def test_R57_record_is_written_after_the_work(
    api: Api,
    atomic_requests: bool,  # noqa: F811
    runs: list[str],  # noqa: F811
    name: str,
) -> None:
    row = ROWS[name]
    api.client.raise_request_exception = False

    first = api(row.body)
    state, effects = record().state, Effect.objects.count()
    again = api(row.body)

    assert first.status_code == again.status_code == row.status
    assert state == row.state
    assert effects == (row.work_stands or not atomic_requests)
    assert replayed(again) == (row.state == "COMPLETED")
    assert len(runs) == (1 if row.state == "COMPLETED" else 2)
    assert not Child.objects.exists()
    assert not connection.in_atomic_block


@pytest.mark.parametrize("path", SYNCHRONOUS)
def test_R57_others_see_the_work_before_the_record_is_completed(
    api: Api,
    atomic_requests: bool,  # noqa: F811
    path: str,
) -> None:
    assert api(path=path).status_code == 201
    assert store_for("default").seen == [1]  # type: ignore[attr-defined]


def test_R57_commit_that_fails_completes_nothing(
    api: Api,
    atomic_requests: bool,  # noqa: F811
) -> None:
    api.client.raise_request_exception = False
    assert api.then("deferred").status_code == 500
    assert store_for("default").seen == []  # type: ignore[attr-defined]
    assert record().state is State.FAILED


# A server that is not there.


@pytest.fixture
def behind_a_proxy(proxied: tuple[Proxy, str], configure: Configure) -> tuple[Api, Proxy]:
    configure(proxied[1])
    api = Api()
    api.client.raise_request_exception = False
    return api, proxied[0]


@pytest.mark.parametrize("path", VIEWS)
def test_R61_no_server_is_503_and_nothing_runs(
    behind_a_proxy: tuple[Api, Proxy], path: str
) -> None:
    api, proxy = behind_a_proxy
    proxy.refuse()
    assert problem(api(path=path)) == (503, "store_unavailable")
    assert Effect.objects.count() == 0


def test_R61_no_server_with_fail_open_runs_without_a_guard(
    proxied: tuple[Proxy, str], configure: Configure
) -> None:
    configure(proxied[1], HTTP={"FAIL_OPEN": True})
    proxied[0].refuse()
    answers = [Api()(path="/function/") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert Effect.objects.count() == 2


def test_R60_server_that_goes_away_during_the_work_does_not_take_its_answer(
    behind_a_proxy: tuple[Api, Proxy], caplog: pytest.LogCaptureFixture
) -> None:
    api, proxy = behind_a_proxy

    def away(sender: Any, **kwargs: Any) -> None:
        proxy.refuse()
        proxy.cut()

    post_save.connect(away, sender=Effect)
    try:
        response = api(path="/function/")
    finally:
        post_save.disconnect(away, sender=Effect)
    proxy.heal()
    assert response.status_code == 201
    assert json.loads(response.content) == {"id": Effect.objects.get().pk}
    assert "could not be completed" in caplog.text
    assert record().state is State.IN_PROGRESS
    assert problem(api(path="/function/")) == (409, "in_progress")
    assert store_for("default").get(asked().record_id) is None
