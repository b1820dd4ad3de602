"""R91: a success whose transaction can only be rolled back is an error, unless it was wished."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction

import django_idempotency as idempotency
from django_idempotency import WorkRolledBack
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect, Unique
from tests.unit.core.conftest import MEMORY, Call

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

#: Sync and async, in both of the modes that join.
JOINS = pytest.mark.parametrize(
    "call",
    [Call("run", "joined"), Call("run", "single"), Call("aattempt", "joined")],
    ids=lambda call: f"{call.caller}-{call.mode}",
)


def take_twice(using: str = "default") -> None:
    for _ in range(2):
        Unique.objects.using(using).create(name="taken")


def swallow() -> None:
    with suppress(IntegrityError):
        take_twice()


def handle_in_inner_block() -> None:
    with suppress(IntegrityError), transaction.atomic():
        take_twice()


def swallow_without_savepoint() -> None:
    with suppress(IntegrityError), transaction.atomic(savepoint=False):
        take_twice()


def swallow_of_cursor(using: str = "default") -> None:
    """Django does not see the error of a raw statement, at which SQLite ends the transaction."""
    Unique.objects.using(using).create(name="taken")
    with suppress(IntegrityError), connections[using].cursor() as cursor:
        cursor.execute("INSERT OR ROLLBACK INTO app_unique (name) VALUES ('taken')")


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


COMMITS = [(handle_in_inner_block,), (wish_in_inner_block,), (take_wish_back,)]
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
    (swallow_of_cursor,),
    (mark_by_hand,),
    (wish_in_inner_block, swallow),
    (take_wish_back, swallow),
]


def named(steps: tuple[Callable[[], None], ...]) -> str:
    return "+".join(step.__name__ for step in steps)


def work_of(steps: tuple[Callable[[], None], ...]) -> Callable[[Any], str]:
    def work(lease: Any) -> str:
        Effect.objects.create(name="work")
        for step in steps:
            step()
        return "done"

    return work


def state() -> str:
    return str(IdempotencyRecord.objects.get().state)


@JOINS
def test_R91_success_that_can_only_be_rolled_back_is_an_error(call: Call, caplog: Any) -> None:
    for steps in ERRORS:
        caplog.clear()
        with pytest.raises(WorkRolledBack):
            call(work_of(steps), transaction=call.mode)
        assert (Effect.objects.count(), Unique.objects.count(), state()) == (0, 0, "FAILED")
        told = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
        assert "can only be rolled back" in told[0], named(steps)
    assert not call(work_of(()), transaction=call.mode).replayed


@JOINS
def test_R91_wished_rollback_is_answered_and_not_stored(call: Call) -> None:
    for steps in WISHES:
        answer = call(work_of(steps), transaction=call.mode)
        assert (answer.result, answer.stored) == ("done", False), named(steps)
        assert (Effect.objects.count(), state()) == (0, "FAILED")
        assert "set_rollback" not in vars(connection)
        assert connection.execute_wrappers == []


@JOINS
@pytest.mark.parametrize("steps", COMMITS, ids=named)
def test_R91_what_an_inner_block_has_handled_is_no_fault(call: Call, steps: Any) -> None:
    answer = call(work_of(steps), transaction=call.mode)
    assert (answer.result, answer.stored) == ("done", True)
    assert (Effect.objects.count(), state()) == (1, "COMPLETED")


def test_R91_within_the_callers_transaction_it_rolls_back_to_its_savepoint() -> None:
    with transaction.atomic():
        Effect.objects.create(name="before")
        with pytest.raises(WorkRolledBack):
            idempotency.run(work_of((swallow,)), key="k", scope="s")
        Effect.objects.create(name="after")

    assert [effect.name for effect in Effect.objects.order_by("pk")] == ["before", "after"]
    assert state() == "FAILED"


@pytest.mark.parametrize("using", ["default", "other"])
@pytest.mark.parametrize("cursor", [True, False], ids=["raw cursor", "ORM"])
def test_R91_success_that_dooms_a_transaction_of_the_callers_is_an_error(
    settings: Any, using: str, cursor: bool
) -> None:
    """The store is no part of that transaction, so its completion would tell of what is gone."""
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY}}

    def work(lease: Any) -> None:
        if cursor:
            swallow_of_cursor(using)
        with suppress(IntegrityError):
            cursor or take_twice(using)

    with transaction.atomic(using=using), pytest.raises(WorkRolledBack):
        idempotency.run(work, key="k", scope="s")
    assert not idempotency.run(lambda lease: "again", key="k", scope="s").replayed
