"""A process dies in, between and after the steps of an attempt, and a retry goes on (P1 to P8)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

import django_idempotency as idempotency
from django_idempotency import journal
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.services.databases import environment_for_children
from tests.services.forks import Forks

DIED = 42
#: Where an attempt dies, by the failure; what its journal has then, and the effects there are.
CRASHES: dict[str, tuple[str, str, list[str], list[str]]] = {
    "P1-before the first": ("in_work", "before one", [], []),
    "P2-in the first": ("in_work", "in one", [], []),
    "P3-before the first note": ("before_note", "one", [], []),
    "P3-after the first note": ("after_note", "one", [], []),
    "P3-before the first commit": ("before_commit", "one", [], []),
    "P7-after the first commit": ("after_commit", "one", ["one"], ["one"]),
    "P1-between": ("in_work", "before call", ["one"], ["one"]),
    "P2-in the call": ("in_work", "in call", ["one"], ["one", "called"]),
    "P6-after the call": ("before_note", "call", ["one"], ["one", "called"]),
    "P7-after its note": ("after_note", "call", ["one", "call"], ["one", "called"]),
    "P2-in the last": ("in_work", "in two", ["one", "call"], ["one", "called"]),
    "P3-after the last note": ("after_note", "two", ["one", "call"], ["one", "called"]),
    "P7-after the last commit": ("after_commit", "two", ["one", "call", "two"], []),
    "P8-before the completion": ("before_complete", "", ["one", "call", "two"], []),
    "P8-after the completion": ("after_complete", "", [], []),
}

WORK = """
import django_idempotency as idempotency
from django.db import connections
from django_idempotency.testing import crash_at
from tests.app.models import Effect

point, place, crash = {point!r}, {place!r}, None

def pass_(here):
    global crash
    if here == place and point == "in_work":
        crash = crash_at(point, exit_code=42).__enter__()
        crash()

def step(name):
    Effect.objects.create(name=name)
    pass_("in " + name)
    return name

def call(key):
    # The other service, which knows no keys, and shows each call.
    Effect.objects.create(name="called")
    pass_("in call")
    return key

def arm(name):
    global crash
    pass_("before " + name)
    if place == name:
        crash = crash_at(point, exit_code=42).__enter__()

def work(lease):
    arm("one")
    one = lease.step("one", step, "one")
    arm("call")
    lease.external("call", call, uncertain="repeat")
    arm("two")
    two = lease.step("two", step, "two")
    arm("")
    return [one, two]

answer = idempotency.run(work, key="k", scope="s", transaction="steps")
assert answer.result == ["one", "two"], answer
"""
RETRY = WORK.format(point="", place="nowhere")


@pytest.fixture(scope="module")
def forks(django_db_setup: None) -> Iterator[Forks]:
    with Forks(environment_for_children()) as forks:
        yield forks


@pytest.fixture(autouse=True)
def default_store(settings: Any, transactional_db: None) -> None:
    settings.IDEMPOTENCY = {"default": {}}


def effects() -> list[str]:
    return [*Effect.objects.order_by("pk").values_list("name", flat=True)]


@pytest.mark.parametrize("failure", CRASHES)
def test_P1_to_P8_a_step_is_done_once_and_a_call_again_under_its_key(
    forks: Forks, failure: str
) -> None:
    point, place, noted, done = CRASHES[failure]
    completed = point == "after_complete"
    done = done or (["one", "called", "two"] if len(noted) == 3 or completed else [])

    assert forks.run(WORK.format(point=point, place=place)) == DIED
    record = IdempotencyRecord.objects.get()
    assert [*journal.read(record.steps).results] == noted
    assert effects() == done
    if not completed:
        with pytest.raises(idempotency.InProgress):
            idempotency.run(lambda lease: 1, key="k", scope="s", transaction="steps")
        IdempotencyRecord.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    assert forks.run(RETRY) == 0

    left = effects()
    calls = 2 if failure in ("P2-in the call", "P6-after the call") else 1
    assert [left.count(name) for name in ("one", "two", "called")] == [1, 1, calls]
    record.refresh_from_db()
    assert (record.state, record.steps) == ("COMPLETED", None)
