"""A guarded view whose COMMIT fails, on each store and in each mode (I13)."""

from __future__ import annotations

import pytest
from django.db import connections
from django.test import Client

from django_idempotency.conf import store_for
from django_idempotency.records import State
from tests.app.models import Child
from tests.unit.core.conftest import names

pytestmark = pytest.mark.django_db(transaction=True)


def post(then):
    return Client(raise_request_exception=False).post(
        "/effects/",
        {"name": "x", "then": then, "status": 409},
        content_type="application/json",
        headers={"Idempotency-Key": "k", "X-User": "alice"},
    )


@pytest.mark.parametrize("atomic_requests", [False, True])
def test_I13_work_that_does_not_commit_is_not_replayed(mode, monkeypatch, atomic_requests):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic_requests)
    for _ in range(2):
        response = post("deferred")
        assert response.status_code == 500
        assert "Idempotency-Replayed" not in response.headers
    assert Child.objects.count() == 0
    [record] = store_for().browse().records
    assert (record.state, record.attempts) == (State.FAILED, 2)
    # Beside the store and without ATOMIC_REQUESTS each statement commits by itself.
    assert names() == (["x"] * 2 if mode == "memory" and not atomic_requests else [])


def test_I13_the_record_is_completed_after_the_commit_and_not_before(memory, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    open_at_completion, complete = [], memory.complete

    def watched(*arguments, **options):
        open_at_completion.append(connections["default"].in_atomic_block)
        return complete(*arguments, **options)

    monkeypatch.setattr(memory, "complete", watched)
    assert post("created").status_code == 201
    assert open_at_completion == [False]
    assert post("created").headers["Idempotency-Replayed"] == "true"
    assert names() == ["x"]
