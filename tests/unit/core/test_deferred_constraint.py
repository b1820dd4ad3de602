"""A store that cannot join beside work whose COMMIT fails, in a guarded view (I13)."""

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


def only_record(store):
    [record] = store._records.values()
    return record


def test_I13_work_that_does_not_commit_is_not_replayed(memory, atomic_requests):
    for _ in range(2):
        response = post("deferred")
        assert response.status_code == 500
        assert "Idempotency-Replayed" not in response.headers
    assert only_record(memory).state is State.FAILED
    assert only_record(memory).attempts == 2
    assert Child.objects.count() == 0


def test_I13_with_ATOMIC_REQUESTS_nothing_of_it_is_left(memory, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    post("deferred")
    assert Effect.objects.count() == 0


def test_I13_work_that_commits_is_replayed(memory, atomic_requests):
    first, second = post("created"), post("created")
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.content == first.content
    assert second.headers["Idempotency-Replayed"] == "true"
    assert Effect.objects.count() == 1


def test_I13_the_record_is_completed_after_the_commit_and_not_before(memory, monkeypatch, clock):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    open_at_completion = []
    complete = memory.complete

    def watched(*arguments, **options):
        open_at_completion.append(connections["default"].in_atomic_block)
        return complete(*arguments, **options)

    monkeypatch.setattr(memory, "complete", watched)
    assert post("created").status_code == 201
    assert open_at_completion == [False]


def test_R57_a_kept_error_is_kept_without_its_work(memory, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    first, second = post("raised"), post("raised")
    assert (first.status_code, second.status_code) == (409, 409)
    assert second.headers["Idempotency-Replayed"] == "true"
    assert Effect.objects.count() == 0


@pytest.mark.parametrize("mode", ["single", "joined", "separate"])
def test_I13_on_the_database_in_each_mode(settings, atomic_requests, mode):
    settings.IDEMPOTENCY = {"default": {"TRANSACTION": mode}}
    for _ in range(2):
        response = post("deferred")
        assert response.status_code == 500
        assert "Idempotency-Replayed" not in response.headers
    assert Child.objects.count() == 0
    assert store_for().count_expired() == 0
