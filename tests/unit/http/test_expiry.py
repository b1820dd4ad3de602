"""Section H, as far as HTTP shows it: expiry and the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
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
from tests.unit.http.views import WAYS, GuardedView

pytestmark = pytest.mark.django_db

AN_HOUR = timedelta(hours=1)


def expire() -> None:
    """Let the retention of all records be over."""
    IdempotencyRecord.objects.update(expires_at=timezone.now() - AN_HOUR)


def test_R73_within_retention_it_replays(api: Api, mode: str) -> None:
    """And a replay does not extend it."""
    first = api()
    IdempotencyRecord.objects.update(expires_at=timezone.now() + AN_HOUR)
    before = IdempotencyRecord.objects.values().get()

    again = api()

    assert (again.content, replayed(again)) == (first.content, True)
    assert IdempotencyRecord.objects.values().get() == before


@pytest.mark.parametrize(
    ("then", "retention", "max_duration"),
    [
        ("created", timedelta(days=3), 60),
        ("raised", timedelta(days=3), 60),
        ("invalid", timedelta(days=3), 60),
        ("boom", timedelta(days=3), 60),
        ("created", timedelta(seconds=120), 3600),  # a success is not kept for its attempt's sake
    ],
)
def test_R73_retention_counts_from_the_end(
    api: Api, policy: SetPolicy, then: str, retention: timedelta, max_duration: int
) -> None:
    policy(RETENTION=retention, MAX_DURATION=max_duration)
    api.client.raise_request_exception = False

    earliest = timezone.now() + retention - timedelta(seconds=1)
    api.then(then, status=409)
    latest = timezone.now() + retention + timedelta(seconds=1)

    expires_at = IdempotencyRecord.objects.get().expires_at
    assert expires_at is not None
    assert earliest <= expires_at <= latest


@pytest.mark.parametrize("swept", [False, True], ids=["not swept", "swept"])
@pytest.mark.parametrize("then", ["created", "boom"])
def test_R74_after_it_a_new_run_of_anything(
    api: Api, runs: list[str], then: str, swept: bool
) -> None:
    api.client.raise_request_exception = False
    api.then(then, status=409)
    epoch = IdempotencyRecord.objects.get().epoch
    expire()
    if swept:
        assert sweep("default") == {"default": 1}

    other, again = api({"name": "other"}), api({"name": "other"})

    assert (other.status_code, replayed(other)) == (201, False)
    assert again.content == other.content
    assert runs == ["first", "other"]
    record = IdempotencyRecord.objects.get()
    assert (record.state, record.attempts) == ("COMPLETED", 1)
    assert record.expires_at > timezone.now() + AN_HOUR
    assert record.epoch > epoch


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


@WAYS
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("statement", ["SELECT record.id", "UPDATE idempotency_record"])
def test_R76_swept_between_conflict_and_reread(
    api: Api, mode: str, atomic_requests: bool, runs: list[str], statement: str
) -> None:
    api()
    expire()

    with swept_before(statement) as done:
        response = api({"name": "other"})

    assert done
    assert (response.status_code, replayed(response)) == (201, False)
    assert runs == ["first", "other"]
    assert IdempotencyRecord.objects.get().state == "COMPLETED"
    assert replayed(api({"name": "other"}))


class Sweeping(GuardedView):
    """Sweeps while the work is under way."""

    def post(self, request: Request) -> Response:
        swept = sweep("default")["default"]
        Effect.objects.create(name=request.data["name"])
        return Response({"swept": swept}, status=201)


@WAYS
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
