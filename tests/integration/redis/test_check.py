"""What `manage.py check --deploy` says of the server."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks

from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis import store as module
from tests.integration.redis.conftest import BACKEND, MakeStore, StartServer


def ids(store: RedisStore) -> list[str]:
    messages: list[checks.CheckMessage] = store.check()
    assert all(message.hint for message in messages)
    return [str(message.id).removeprefix("django_idempotency.") for message in messages]


def test_good_server_has_none(store: RedisStore) -> None:
    assert ids(store) == []


def test_W008_W015_server_that_may_evict_claims_and_is_a_replica(
    start_server: StartServer, make_store: MakeStore
) -> None:
    server = start_server(
        maxmemory_policy="volatile-ttl", maxmemory="100mb", replicaof="127.0.0.1 1"
    )
    store = make_store(server.url)
    assert ids(store) == ["W008", "W015"]
    evicts, replica = store.check()
    assert "volatile-ttl" in evicts.msg
    assert "is a replica" in replica.msg


def test_W009_server_that_does_not_answer(make_store: MakeStore) -> None:
    store = make_store("redis://nobody:secret@127.0.0.1:1/0")
    assert ids(store) == ["W009"]
    assert "secret" not in str(store.check())
    assert "at 127.0.0.1:1: ConnectionError" in store.check()[0].msg


def test_E010_server_that_is_too_old(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLDEST", (99, 0))  # no wheel has a server that is too old
    assert ids(store) == ["E010"]


def test_server_is_asked_with_deploy_only(settings: Any) -> None:
    store = {"BACKEND": BACKEND, "OPTIONS": {"url": "redis://127.0.0.1:1/0"}}
    settings.IDEMPOTENCY = {"default": {}, "fast": store}
    assert checks.run_checks(tags=["idempotency"]) == []
    told = checks.run_checks(tags=["idempotency"], include_deployment_checks=True)
    assert [message.id for message in told] == ["django_idempotency.W009"]
