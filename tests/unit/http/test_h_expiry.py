"""Section H, as far as HTTP shows it: expiry and the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.models import IdempotencyRecord
from django_idempotency.sweep import sweep
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, Mount, SetPolicy
from tests.unit.http.views import GuardedView

pytestmark = pytest.mark.django_db

AN_HOUR = timedelta(hours=1)


def expires_at() -> datetime:
    found = IdempotencyRecord.objects.get().expires_at
    assert found is not None
    return found


def expire() -> None:
    """Let the retention of all records be over."""
    IdempotencyRecord.objects.update(expires_at=timezone.now() - AN_HOUR)


def test_R73_a_replay_does_not_extend_the_retention(api: Api, mode: str) -> None:
    api()
    before = IdempotencyRecord.objects.values().get()

    assert replayed(api())
    assert IdempotencyRecord.objects.values().get() == before


@pytest.mark.parametrize("then", ["created", "raised", "invalid", "returned"])
def test_R73_retention_counts_from_the_end(
    api: Api, policy: SetPolicy, mode: str, then: str
) -> None:
    policy(RETENTION=timedelta(days=3), MAX_DURATION=60)

    earliest = timezone.now() + timedelta(days=3) - timedelta(seconds=1)
    api.then(then, status=409)
    latest = timezone.now() + timedelta(days=3) + timedelta(seconds=1)

    assert earliest <= expires_at() <= latest


def test_R73_short_retention_is_not_prolonged_by_max_duration(
    api: Api, policy: SetPolicy, mode: str
) -> None:
    policy(RETENTION=120, MAX_DURATION=3600)

    api()

    assert expires_at() <= timezone.now() + timedelta(seconds=121)


def test_R73_within_retention_it_replays(api: Api) -> None:
    first = api()
    IdempotencyRecord.objects.update(expires_at=timezone.now() + AN_HOUR)

    assert api().content == first.content


@pytest.mark.parametrize("swept", [False, True], ids=["not swept", "swept"])
@pytest.mark.parametrize("then", ["created", "raised", "returned", "boom"])
def test_R74_after_it_a_new_run_of_anything(
    api: Api, mode: str, atomic_requests: bool, runs: list[str], then: str, swept: bool
) -> None:
    api.client.raise_request_exception = False
    api.then(then, status=409)
    expire()
    if swept:
        assert sweep("default") == {"default": 1}

    other, again = api({"name": "other"}), api({"name": "other"})

    assert other.status_code == 201
    assert not replayed(other)
    assert again.content == other.content
    assert runs == ["first", "other"]
    record = IdempotencyRecord.objects.get()
    assert (record.state, record.attempts) == ("COMPLETED", 1)
    assert record.expires_at > timezone.now() + AN_HOUR


def test_R74_epoch_grows_over_an_expiry(api: Api, mode: str) -> None:
    api()
    before = IdempotencyRecord.objects.get().epoch
    expire()
    api()

    assert IdempotencyRecord.objects.get().epoch > before


def test_R74_expired_attempt_without_a_lease_is_nobodys(
    api: Api, in_progress: InProgress, mode: str
) -> None:
    api()
    in_progress()
    expire()
    IdempotencyRecord.objects.update(lease_until=F("expires_at"))

    assert api({"name": "other"}).status_code == 201


def test_R75_live_lease_is_never_swept(
    api: Api, in_progress: InProgress, mode: str, runs: list[str]
) -> None:
    api()
    in_progress()
    expire()

    assert sweep("default") == {"default": 0}
    assert problem(api()) == (409, "in_progress")
    assert problem(api({"name": "other"})) == (422, "idempotency_key_reused")
    assert len(runs) == 1


def test_R75_what_still_answers_is_not_swept(api: Api) -> None:
    for then in ("created", "raised", "invalid", "returned"):
        api.then(then, status=500, key=then)

    assert sweep("default") == {"default": 0}
    assert IdempotencyRecord.objects.count() == 4


@contextmanager
def swept_before(statement: str) -> Iterator[list[str]]:
    """Delete all records before the first statement of the store that begins so."""
    done: list[str] = []

    def execute(run: Any, sql: str, *arguments: Any) -> Any:
        ours = sql.lstrip().startswith(statement) and "idempotency_record" in sql
        if ours and not done:
            done.append(sql)
            IdempotencyRecord.objects.all()._raw_delete("default")
        return run(sql, *arguments)

    with connection.execute_wrapper(execute):
        yield done


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("then", ["created", "boom"])
@pytest.mark.parametrize("statement", ["SELECT record.id", "UPDATE idempotency_record"])
def test_R76_swept_between_conflict_and_reread(
    api: Api, mode: str, atomic_requests: bool, runs: list[str], then: str, statement: str
) -> None:
    api.client.raise_request_exception = False
    api.then(then)
    expire()

    with swept_before(statement) as done:
        response = api({"name": "other"})

    assert done
    assert response.status_code == 201
    assert not replayed(response)
    assert runs == ["first", "other"]
    assert IdempotencyRecord.objects.get().state == "COMPLETED"
    assert replayed(api({"name": "other"}))


class Sweeping(GuardedView):
    """Sweeps while the work is under way."""

    def post(self, request: Request) -> Response:
        swept = sweep("default")["default"]
        Effect.objects.create(name=request.data["name"])
        return Response({"swept": swept}, status=201)


@pytest.mark.django_db(transaction=True)
def test_R76_swept_while_the_work_runs(
    api: Api, mount: Mount, mode: str, atomic_requests: bool, runs: list[str]
) -> None:
    url = mount(Sweeping)
    api(path=url)
    expire()

    first, again = api(path=url), api(path=url)

    assert (first.status_code, replayed(first)) == (201, False)
    assert replayed(again)
    assert len(runs) == 2
