"""R91: a success whose transaction can only be rolled back is an error, unless it was wished."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, IntegrityError, connection, transaction

import django_idempotency as idempotency
from django_idempotency import WorkRolledBack
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import Lease
from tests.app.models import Effect, Unique

pytestmark = pytest.mark.django_db(transaction=True)

JOINS = pytest.mark.parametrize("transaction_mode", ["joined", "single"])


def take_twice() -> None:
    Unique.objects.create(name="taken")
    Unique.objects.create(name="taken")


def swallow() -> None:
    with suppress(IntegrityError):
        take_twice()


def handle_in_inner_block() -> None:
    with suppress(IntegrityError), transaction.atomic():
        take_twice()


def swallow_without_savepoint() -> None:
    with suppress(IntegrityError), transaction.atomic(savepoint=False):
        take_twice()


def swallow_of_cursor() -> None:
    """Django does not see the error of a raw statement: on PostgreSQL the driver alone knows."""
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column")


def wish() -> None:
    transaction.set_rollback(True)


def wish_in_inner_block() -> None:
    with transaction.atomic():
        wish()


def wish_without_savepoint() -> None:
    with transaction.atomic(savepoint=False):
        wish()


def take_wish_back() -> None:
    wish()
    transaction.set_rollback(False)


def mark_by_hand() -> None:
    connection.needs_rollback = True


COMMITS = [
    (handle_in_inner_block,),
    (wish_in_inner_block,),
    (take_wish_back,),
]
WISHES = [
    (wish,),
    (wish_without_savepoint,),
    (handle_in_inner_block, wish),
    (swallow, wish),
    (take_wish_back, wish),
]
ERRORS = [
    (swallow,),
    (swallow_without_savepoint,),
    (mark_by_hand,),
    (wish_in_inner_block, swallow),
    (take_wish_back, swallow),
]


def named(steps: tuple[Callable[[], None], ...]) -> str:
    return "+".join(step.__name__ for step in steps)


def work_of(steps: tuple[Callable[[], None], ...]) -> Callable[[Lease], str]:
    def work(lease: Lease) -> str:
        Effect.objects.create(name="work")
        for step in steps:
            step()
        return "done"

    return work


def run(steps: tuple[Callable[[], None], ...], mode: str | None = None) -> idempotency.Outcome:
    return idempotency.run(work_of(steps), key="k", scope="s", transaction=mode)


def state() -> str:
    return str(IdempotencyRecord.objects.get().state)


@JOINS
@pytest.mark.parametrize("steps", ERRORS, ids=named)
def test_R91_success_that_can_only_be_rolled_back_is_an_error(
    transaction_mode: str, steps: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(WorkRolledBack):
        run(steps, transaction_mode)

    assert not Effect.objects.exists()
    assert state() == "FAILED"
    [told] = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    assert "can only be rolled back" in told.getMessage()
    assert run((), transaction_mode).result == "done"


@JOINS
@pytest.mark.parametrize("steps", WISHES, ids=named)
def test_R91_wished_rollback_is_answered_and_not_stored(transaction_mode: str, steps: Any) -> None:
    outcome = run(steps, transaction_mode)

    assert (outcome.result, outcome.stored) == ("done", False)
    assert not Effect.objects.exists()
    assert state() == "FAILED"


@JOINS
@pytest.mark.parametrize("steps", COMMITS, ids=named)
def test_R91_what_an_inner_block_has_handled_is_no_fault(transaction_mode: str, steps: Any) -> None:
    outcome = run(steps, transaction_mode)

    assert (outcome.result, outcome.stored) == ("done", True)
    assert Effect.objects.count() == 1
    assert state() == "COMPLETED"


@pytest.mark.leg("postgres18", "postgres16")  # elsewhere a failed statement dooms nothing
def test_R91_error_of_a_raw_cursor() -> None:
    with pytest.raises(WorkRolledBack):
        run((swallow_of_cursor,))
    assert (Effect.objects.count(), state()) == (0, "FAILED")


@pytest.mark.leg("sqlite")
@JOINS
def test_R91_error_at_which_sqlite_ends_the_transaction(transaction_mode: str) -> None:
    def end_transaction() -> None:
        Unique.objects.create(name="taken")
        with suppress(IntegrityError), connection.cursor() as cursor:
            cursor.execute("INSERT OR ROLLBACK INTO app_unique (name) VALUES ('taken')")

    with pytest.raises(WorkRolledBack):
        run((end_transaction,), transaction_mode)

    assert not Effect.objects.exists()
    assert not run((), transaction_mode).replayed


def test_R91_within_the_callers_transaction_it_rolls_back_to_its_savepoint() -> None:
    with transaction.atomic():
        Effect.objects.create(name="before")
        with pytest.raises(WorkRolledBack):
            run((swallow,))
        Effect.objects.create(name="after")

    assert [effect.name for effect in Effect.objects.order_by("pk")] == ["before", "after"]
    assert state() == "FAILED"


def test_R91_attempt_raises_at_its_end() -> None:
    with pytest.raises(WorkRolledBack), idempotency.attempt(key="k", scope="s") as attempt:
        attempt.complete(work_of((swallow,))(attempt.lease))
    assert state() == "FAILED"


def test_R91_coroutine() -> None:
    async def work(lease: Lease) -> str:
        await sync_to_async(work_of((swallow,)))(lease)
        return "done"

    async def main() -> None:
        with pytest.raises(WorkRolledBack):
            await idempotency.arun(work, key="k", scope="s", transaction="joined")

    asyncio.run(main())
    assert (Effect.objects.count(), state()) == (0, "FAILED")


@JOINS
def test_R91_connection_is_left_as_it_was(transaction_mode: str) -> None:
    run((wish,), transaction_mode)
    assert "set_rollback" not in vars(connection)
    assert connection.execute_wrappers == []
