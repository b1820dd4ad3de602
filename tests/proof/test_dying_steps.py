"""A process dies in, between and after steps whose notes are in no transaction (P1 to P8)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import pytest
from django.test import override_settings

import django_idempotency as idempotency
from django_idempotency import journal, keys
from django_idempotency.conf import store_for
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.dynamodb import schema
from tests.acceptance.processes.test_steps import DIED, WORK, effects
from tests.services import or_skip
from tests.services.databases import environment_for_children
from tests.services.dynamodb import ENVIRONMENT, dynamodb_url
from tests.services.forks import Forks
from tests.services.processes import wait_until
from tests.services.redis import RedisServer

pytestmark = pytest.mark.django_db(transaction=True)

#: Where an attempt dies, by the failure; what its journal has then; how often the first step, the
#: call and the last step are done in the end. A step that dies before its note is done again.
CRASHES: dict[str, tuple[str, str, list[str], tuple[int, int, int]]] = {
    "P1-before the first": ("in_work", "before one", [], (1, 1, 1)),
    "P2-in the first": ("in_work", "in one", [], (2, 1, 1)),
    "P3-before the first note": ("before_note", "one", [], (2, 1, 1)),
    "P7-after the first note": ("after_note", "one", ["one"], (1, 1, 1)),
    "P1-between": ("in_work", "before call", ["one"], (1, 1, 1)),
    "P2-in the call": ("in_work", "in call", ["one"], (1, 2, 1)),
    "P6-after the call": ("before_note", "call", ["one"], (1, 2, 1)),
    "P7-after its note": ("after_note", "call", ["one", "call"], (1, 1, 1)),
    "P2-in the last": ("in_work", "in two", ["one", "call"], (1, 1, 2)),
    "P3-before the last note": ("before_note", "two", ["one", "call"], (1, 1, 2)),
    "P7-after the last note": ("after_note", "two", ["one", "call", "two"], (1, 1, 1)),
    "P8-before the completion": ("before_complete", "", ["one", "call", "two"], (1, 1, 1)),
    "P8-after the completion": ("after_complete", "", [], (1, 1, 1)),
}


@pytest.fixture(scope="module")
def forks(django_db_setup: None) -> Iterator[Forks]:
    with Forks({**environment_for_children(), **ENVIRONMENT}) as forks:
        yield forks


@pytest.fixture(scope="module", params=["redis", "dynamodb"])
def alias(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The settings of an alias whose store is up."""
    with ExitStack() as stack:
        if request.param == "redis":
            server = or_skip(lambda: stack.enter_context(RedisServer()))
            backend, options = "redis.RedisStore", {"url": server.url}
        else:
            stack.enter_context(mock.patch.dict(os.environ, ENVIRONMENT))
            url = or_skip(lambda: stack.enter_context(dynamodb_url()))
            backend = "dynamodb.DynamoDBStore"
            options = {"table_name": "steps", "endpoint_url": url, "clock_skew": 0.0}
        made = {"BACKEND": f"django_idempotency.stores.{backend}", "OPTIONS": options, "LEASE": 1}
        with override_settings(IDEMPOTENCY={"default": made}):
            if request.param == "dynamodb":
                schema.create(store_for())
            yield made


@pytest.mark.parametrize("failure", CRASHES)
def test_P1_to_P8_what_was_noted_is_not_done_again(
    forks: Forks, settings: Any, alias: dict[str, Any], failure: str
) -> None:
    point, place, noted, times = CRASHES[failure]
    settings.IDEMPOTENCY = {"default": alias}
    store, key = store_for(), f"key-{uuid4().hex}"
    record_id = keys.record_id("call", "s", key)
    work = WORK.replace('key="k"', f'key="{key}"')
    told = f"from django.conf import settings\nsettings.IDEMPOTENCY = {settings.IDEMPOTENCY}\n"

    assert forks.run(told + work.format(point=point, place=place)) == DIED
    record = store.get(record_id)
    assert record is not None
    assert [*journal.read(record.steps).results] == noted
    if point != "after_complete":
        with pytest.raises(idempotency.InProgress):
            idempotency.run(lambda lease: 1, key=key, scope="s", transaction="steps")
        wait_until(lambda: is_stale(store, record_id), seconds=30, what="the end of the lease")
    assert forks.run(told + work.format(point="", place="nowhere")) == 0

    left = effects()
    assert tuple(left.count(name) for name in ("one", "called", "two")) == times
    record = store.get(record_id)
    assert record is not None
    assert (record.state, record.steps) == (State.COMPLETED, None)


def is_stale(store: BaseStore, record_id: UUID) -> bool:
    record = store.get(record_id)
    return record is not None and record.stale
