"""What a delivery waits with: what it knows of the attempt that holds the record (C8)."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest
from celery.exceptions import Retry

from django_idempotency import InProgress
from django_idempotency.contrib.celery.waits import DeliveryWaiter
from django_idempotency.policy import Policy
from django_idempotency.stores.memory import MemoryStore
from tests.claims import asked, found, record_id
from tests.unit.celery.test_in_progress import Meeting

pytestmark = pytest.mark.usefixtures("memory")

LATER = timedelta(seconds=30)


def waiter(*, lease=90, first=False, most=60):
    return DeliveryWaiter(record_id(), Policy(lease=lease), timedelta(0), first=first, most=most)


@pytest.fixture
def held(memory):
    """The record of another attempt."""
    memory.claim(asked(lease=90))
    return found(memory)


@pytest.fixture
def locked(held):
    """What is to be seen of one whose lock alone shows that it is there."""
    return replace(held, epoch=0, lease_until=None)


@pytest.fixture(params=["nothing", "a placeholder"])
def unseen(request, locked):
    return None if request.param == "nothing" else locked


def test_C8_the_owner_of_a_lock_lives_if_it_holds_it_for_a_third_of_a_lease(unseen):
    first, again = waiter(lease=0.3, first=True), waiter(lease=0.3)

    assert (first.goes_on(unseen), first.alive) == (False, True)
    assert (again.goes_on(unseen), again.alive) == (True, False)
    threading.Event().wait(again.left)
    assert (again.goes_on(unseen), again.alive) == (False, True)


def test_C6_a_message_behind_a_lock_is_sent_again_after_a_second(local, monkeypatch, unseen):
    busy = InProgress(record=unseen)
    monkeypatch.setattr(MemoryStore, "claim", Mock(side_effect=busy))
    meeting = Meeting(local)

    done = local.deliver(meeting.message)

    assert (type(done.value), done.value.when) == (Retry, 1)
    assert len(local.sent()) == 1


@pytest.mark.parametrize(
    ("stays", "alive", "seconds"),
    [(True, True, 2), (True, False, 0.2), (False, True, 0.2), (False, False, 0.2)],
)
def test_C8_one_that_stays_looks_at_a_live_owner_less_often(stays, alive, seconds):
    waits = waiter()
    waits.began -= 10
    waits.stays, waits.alive = stays, alive

    assert waits.pause() == pytest.approx(seconds, rel=0.1)


def test_C8_a_renewal_is_a_change_to_one_that_finds_out_whether_the_owner_lives(held, locked):
    renewed = replace(held, lease_until=held.lease_until + LATER)
    another = replace(held, epoch=held.epoch + 1)
    for met, record, unchanged in (
        (held, held, True),
        (held, renewed, False),
        (held, another, False),
        (held, None, False),
        (None, locked, True),
        (None, held, False),
        (locked, replace(renewed, epoch=0), True),
    ):
        waits = waiter()
        waits.goes_on(met)
        assert waits.is_unchanged(record) is unchanged

    stays = waiter()
    assert stays.stay()
    stays.goes_on(held)
    assert [stays.is_unchanged(record) for record in (renewed, another)] == [True, False]


def test_C8_an_owner_lives_whose_lease_has_moved_and_is_young(held):
    renewed = replace(held, lease_until=held.lease_until + LATER)
    old = replace(renewed, now=renewed.lease_until - LATER)
    another = replace(renewed, epoch=held.epoch + 1)
    for met, alive in (
        ([held, held], [False, False]),
        ([held, renewed, renewed], [False, True, True]),
        ([held, renewed, old], [False, True, False]),
        ([held, another], [False, False]),
        ([held, renewed, another], [False, True, False]),
    ):
        waits, found_alive = waiter(), []
        for record in met:
            waits.goes_on(record)
            found_alive.append(waits.alive)
        assert found_alive == alive
