"""R91: a success whose transaction can only be rolled back is an error, unless it was wished."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, connections, transaction

from django_idempotency import WorkRolledBack
from django_idempotency.conf import engine_for, store_for
from django_idempotency.keys import short
from tests.app.models import Effect, Unique
from tests.claims import operation
from tests.unit.core.conftest import begin, callers, kept, names, run

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


def observed(using="default"):
    """What stands on a connection for the attempts that are open there."""
    installed = vars(connections[using]).keys() & {"set_rollback"}
    return len(installed), len(connections[using].execute_wrappers)


@callers([("run", "joined"), ("run", "single"), ("aattempt", "joined")])
def test_R91_success_that_can_only_be_rolled_back_is_an_error(call, caplog):
    for steps in ERRORS:
        caplog.clear()
        with pytest.raises(WorkRolledBack):
            call(work_of(steps))
        assert (names(), Unique.objects.count(), kept().state) == ([], 0, "FAILED")
        told = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
        assert f"The work of record {short(kept().record_id)}" in told[0], steps
        assert "can only be rolled back" in told[0], steps
    for steps in WISHES:  # answered and not stored
        answer = call(work_of(steps))
        assert (answer.result, answer.stored) == ("done", False), steps
        assert (names(), kept().state) == ([], "FAILED")
        assert observed() == (0, 0)
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


def test_R96_work_that_is_not_guarded_is_answered_as_django_answers_it():
    unguarded = replace(operation(transaction="joined"), recorded=False)
    with engine_for("default").attempt(unguarded) as attempt:
        attempt.complete(work_of((swallow,))(None))
    assert (attempt.result, names()) == ("done", [])


@pytest.mark.parametrize("using", ["default", "other"])
def test_R91_success_that_dooms_a_transaction_of_the_callers_is_an_error(memory, using):
    """The store is no part of that transaction, so its completion would tell of what is gone."""
    for step in (swallow, swallow_of_cursor):
        with transaction.atomic(using=using), pytest.raises(WorkRolledBack):
            run(lambda lease, step=step: step(using))
        assert kept().state == "FAILED"


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestInterleaved:
    """
    R91: what observes a connection is installed once, and gone when the last attempt has left.

    Imported by tests/integration/database/test_engine.py.
    """

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
    def test_R91_attempts_are_left_in_any_order(self, order):
        watched = 1 if connection.vendor == "mysql" else 0
        with transaction.atomic():
            blocks = [begin(key, store="memory") for key in "abc"]
            for block in blocks:
                attempt = block.__enter__()
                attempt.complete("done")
                assert observed() == (1, watched)
            for place in order:
                assert observed() == (1, watched)
                blocks[place].__exit__(None, None, None)
            assert observed() == (0, 0)

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
    def test_R91_transactions_of_a_store_are_left_in_any_order(self, order):
        blocks = [store_for().atomic() for _ in order]
        for block in blocks:
            block.__enter__()
        for place in order:
            assert observed()[0] == 1
            blocks[place].__exit__(None, None, None)
        assert observed() == (0, 0)

    def test_R91_an_attempt_sees_a_wish_after_another_has_left_before_it(self):
        with transaction.atomic():
            first, second = begin("a", store="memory"), begin("b", store="memory")
            early, late = first.__enter__(), second.__enter__()
            early.complete("done")
            first.__exit__(None, None, None)
            wish()
            late.complete("done")
            second.__exit__(None, None, None)
            assert (early.outcome.stored, late.outcome.stored) == (True, False)
            assert observed() == (0, 0)

    def test_R91_a_wrapper_of_the_projects_that_is_left_between_them_is_gone_alone(self):
        def wrapper(execute, *arguments):
            return execute(*arguments)

        with transaction.atomic():
            of_project = connection.execute_wrapper(wrapper)
            of_project.__enter__()
            attempt = begin("a", store="memory")
            attempt.__enter__().complete("done")
            of_project.__exit__(None, None, None)
            assert wrapper not in connection.execute_wrappers
            attempt.__exit__(None, None, None)
            assert observed() == (0, 0)

    def test_R91_coroutines_that_share_a_connection_are_left_as_they_were_entered(self, in_loop):
        async def main():
            block = transaction.atomic()
            await sync_to_async(block.__enter__)()
            entered, left = asyncio.Event(), asyncio.Event()

            async def first():
                async with begin("a", store="memory") as attempt:
                    await entered.wait()
                    attempt.complete("done")
                left.set()

            async def second():
                async with begin("b", store="memory") as attempt:
                    entered.set()
                    await left.wait()
                    attempt.complete("done")

            await asyncio.gather(first(), second())
            found = await sync_to_async(observed)()
            await sync_to_async(block.__exit__)(None, None, None)
            return found

        assert in_loop(main) == (0, 0)
