"""R91: a success whose transaction can only be rolled back is an error, unless it was wished."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial

import pytest
from django.db import IntegrityError, connection, connections, transaction

from django_idempotency import WorkRolledBack
from tests.app.models import Effect, Unique
from tests.unit.core.conftest import callers, kept, names, run

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def take_twice(using="default"):
    for _ in range(2):
        Unique.objects.using(using).create(name="taken")


def swallow(using="default"):
    with suppress(IntegrityError):
        take_twice(using)


def swallow_in(**options):
    with suppress(IntegrityError), transaction.atomic(**options):
        take_twice()


def swallow_of_cursor(using="default"):
    """Django does not see the error of a raw statement, at which SQLite ends the transaction."""
    Unique.objects.using(using).create(name="taken")
    with suppress(IntegrityError), connections[using].cursor() as cursor:
        cursor.execute("INSERT OR ROLLBACK INTO app_unique (name) VALUES ('taken')")


wish, take_back = (partial(transaction.set_rollback, it) for it in (True, False))
mark_by_hand = partial(setattr, connection, "needs_rollback", True)


def wish_in(**options):
    with transaction.atomic(**options):
        wish()


COMMITS = [(swallow_in,), (wish_in,), (wish, take_back)]
WISHES = [(wish,), (partial(wish_in, savepoint=False),), (swallow_in, wish), (swallow, wish)]
WISHES += [(wish, take_back, wish)]
ERRORS = [(swallow,), (partial(swallow_in, savepoint=False),), (swallow_of_cursor,)]
ERRORS += [(mark_by_hand,), (wish_in, swallow), (wish, take_back, swallow)]


def work_of(steps):
    def work(lease):
        Effect.objects.create(name="work")
        for step in steps:
            step()
        return "done"

    return work


@callers([("run", "joined"), ("run", "single"), ("aattempt", "joined")])
def test_R91_success_that_can_only_be_rolled_back_is_an_error(call, caplog):
    for steps in ERRORS:
        caplog.clear()
        with pytest.raises(WorkRolledBack):
            call(work_of(steps))
        assert (names(), Unique.objects.count(), kept().state) == ([], 0, "FAILED")
        told = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
        assert "can only be rolled back" in told[0], steps
    for steps in WISHES:  # answered and not stored
        answer = call(work_of(steps))
        assert (answer.result, answer.stored) == ("done", False), steps
        assert (names(), kept().state) == ([], "FAILED")
        assert "set_rollback" not in vars(connection)
        assert connection.execute_wrappers == []
    for number, steps in enumerate(COMMITS, 1):  # what an inner block has handled is no fault
        answer = call(work_of(steps), key=f"k{number}")
        assert (answer.result, answer.stored) == ("done", True), steps
        assert (len(names()), kept(f"k{number}").state) == (number, "COMPLETED")


def test_R91_within_the_callers_transaction_it_rolls_back_to_its_savepoint():
    with transaction.atomic():
        Effect.objects.create(name="before")
        with pytest.raises(WorkRolledBack):
            run(work_of((swallow,)))
        Effect.objects.create(name="after")
    assert (names(), kept().state) == (["after", "before"], "FAILED")


@pytest.mark.parametrize("using", ["default", "other"])
def test_R91_success_that_dooms_a_transaction_of_the_callers_is_an_error(memory, using):
    """The store is no part of that transaction, so its completion would tell of what is gone."""
    for step in (swallow, swallow_of_cursor):
        with transaction.atomic(using=using), pytest.raises(WorkRolledBack):
            run(lambda lease, step=step: step(using))
        assert kept().state == "FAILED"
