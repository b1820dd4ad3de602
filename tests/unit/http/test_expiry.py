"""Sections E and H, as far as one session shows them: a duplicate, expiry and the sweep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_idempotency.models import IdempotencyRecord
from django_idempotency.sweep import sweep
from tests.app.views import THEN
from tests.unit.http.api import problem, replayed

pytestmark = pytest.mark.django_db

AN_HOUR = timedelta(hours=1)


def expire() -> None:
    """Let the retention of all records be over."""
    IdempotencyRecord.objects.update(expires_at=timezone.now() - AN_HOUR)


@pytest.mark.django_db(transaction=True)
def test_R49_I12_outstanding_is_409_and_leaves_no_transaction_open(api, in_progress, mode, runs):
    api()
    in_progress()
    before = IdempotencyRecord.objects.values().get()

    response = api()

    assert problem(response) == (409, "in_progress")
    assert response.json()["title"] == "A request is outstanding for this Idempotency-Key"
    assert runs == ["first"]
    assert IdempotencyRecord.objects.values().get() == before
    assert not connection.in_atomic_block
    assert connection.get_autocommit()


def test_R49_in_progress_status_is_a_choice(api, in_progress, policy):
    policy(HTTP={"IN_PROGRESS_STATUS": 425})
    api()
    in_progress()

    assert problem(api()) == (425, "in_progress")


def test_R73_within_retention_it_replays(api):
    """And a replay does not extend it."""
    first = api()
    IdempotencyRecord.objects.update(expires_at=timezone.now() + AN_HOUR)
    before = IdempotencyRecord.objects.values().get()

    again = api()

    assert (again.content, replayed(again)) == (first.content, True)
    assert IdempotencyRecord.objects.values().get() == before


@pytest.mark.parametrize(
    ("status", "swept"), [(201, False), (201, True), (500, False)], ids=["kept", "swept", "failed"]
)
def test_R74_after_it_a_new_run_of_anything(api, runs, status, swept):
    api.then("returned", status=status)
    epoch = IdempotencyRecord.objects.get().epoch
    expire()
    assert not swept or sweep("default") == {"default": 1}

    other, again = api({"name": "other"}), api({"name": "other"})

    assert (other.status_code, replayed(other)) == (201, False)
    assert again.content == other.content
    assert runs == ["first", "other"]
    record = IdempotencyRecord.objects.get()
    assert (record.state, record.attempts) == ("COMPLETED", 1)
    assert record.expires_at > timezone.now() + AN_HOUR
    assert record.epoch > epoch


def test_R75_live_lease_is_never_swept(api, in_progress, runs):
    api()
    in_progress()
    expire()

    assert sweep("default") == {"default": 0}
    assert problem(api()) == (409, "in_progress")
    assert problem(api({"name": "other"})) == (422, "idempotency_key_reused")
    assert len(runs) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("mode", "statement"),
    [
        ("single", "SELECT record.id"),
        ("joined", "SELECT record.id"),
        ("joined", "UPDATE idempotency_record"),
        ("separate", "UPDATE idempotency_record"),
    ],
    indirect=["mode"],
)
def test_R76_swept_between_conflict_and_reread(api, mode, runs, statement):
    done: list[str] = []

    def sweep_before(run: Any, sql: str, *arguments: Any) -> Any:
        if not done and sql.lstrip().startswith(statement) and "idempotency_record" in sql:
            done.append(sql)
            IdempotencyRecord.objects.all()._raw_delete("default")
        return run(sql, *arguments)

    api()
    expire()

    with connection.execute_wrapper(sweep_before):
        response = api({"name": "other"})

    assert done
    assert (response.status_code, replayed(response)) == (201, False)
    assert runs == ["first", "other"]
    assert IdempotencyRecord.objects.get().state == "COMPLETED"
    assert replayed(api({"name": "other"}))


@pytest.mark.django_db(transaction=True)
def test_R76_swept_while_the_work_runs(api, monkeypatch, mode, runs):
    def sweeping(request: Any, effect: Any) -> Any:
        sweep("default")
        return THEN["created"](request, effect)

    monkeypatch.setitem(THEN, "sweeping", sweeping)
    api.then("sweeping")
    expire()

    first, again = api.then("sweeping"), api.then("sweeping")

    assert (first.status_code, replayed(first)) == (201, False)
    assert replayed(again)
    assert len(runs) == 2
