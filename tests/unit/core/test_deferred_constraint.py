"""A guarded view whose COMMIT fails, on each store and in each mode (I13)."""

from __future__ import annotations

import json

import pytest
from django.db import connections
from django.test import Client

from django_idempotency.conf import store_for
from django_idempotency.records import State
from tests.app.models import Child, Effect

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic_requests"])
def atomic_requests(request, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)
    return request.param


def post(then):
    return Client(raise_request_exception=False).post(
        "/effects/",
        json.dumps({"name": "x", "then": then, "status": 409}),
        content_type="application/json",
        headers={"Idempotency-Key": "k", "X-User": "alice"},
    )


def test_I13_work_that_does_not_commit_is_not_replayed(mode, atomic_requests):
    for _ in range(2):
        response = post("deferred")
        assert response.status_code == 500
        assert "Idempotency-Replayed" not in response.headers
    assert Child.objects.count() == 0
    [record] = store_for().browse().records
    assert (record.state, record.attempts) == (State.FAILED, 2)
    # In `separate` without ATOMIC_REQUESTS each statement commits by itself.
    commits = mode in ("separate", "memory") and not atomic_requests
    assert Effect.objects.count() == (2 if commits else 0)


def test_I13_the_record_is_completed_after_the_commit_and_not_before(memory, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    open_at_completion = []
    complete = memory.complete

    def watched(*arguments, **options):
        open_at_completion.append(connections["default"].in_atomic_block)
        return complete(*arguments, **options)

    monkeypatch.setattr(memory, "complete", watched)
    assert post("created").status_code == 201
    assert open_at_completion == [False]
    assert post("created").headers["Idempotency-Replayed"] == "true"
    assert Effect.objects.count() == 1
