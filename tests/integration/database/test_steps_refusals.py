"""Steps of attempts on a database: what is refused before anything runs, and what it says."""

from __future__ import annotations

from functools import partial

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction

import django_idempotency as idempotency
from django_idempotency import TransactionOpen, WorkRolledBack
from tests.app.models import Effect
from tests.integration.database.claims import effects
from tests.unit.core.conftest import kept, never, run_in_loop
from tests.unit.core.steps import run

pytestmark = pytest.mark.django_db(transaction=True)


def write(name):
    Effect.objects.create(name=name)
    return name


def call(lease, word, name, work):
    if word == "step":
        return lease.step(name, work)
    return lease.external(name, lambda key: work(), uncertain="repeat")


@pytest.mark.parametrize("outer", ["step", "external"])
@pytest.mark.parametrize("inner", ["step", "external"])
def test_T5_step_inside_of_another_is_told_so_and_not_of_its_transaction(outer, inner):
    def work(lease):
        with pytest.raises(RuntimeError, match=f"{inner}\\('b'\\) is inside of another"):
            call(lease, outer, "a", lambda: write("outer") and call(lease, inner, "b", never))
        return call(lease, inner, "b", lambda: write("inner"))

    assert run(work).result == "inner"
    assert effects() == (["inner"] if outer == "step" else ["outer", "inner"])


def test_T6_without_autocommit_the_refusal_says_so():
    def work(lease):
        transaction.set_autocommit(False)
        try:
            with pytest.raises(TransactionOpen, match=r"outside of atomic\(\), with autocommit on"):
                lease.step("a", never)
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    run(work)


@pytest.mark.parametrize("word", ["step", "external"])
def test_coroutine_makes_no_call_that_it_cannot_note(word):
    """The call came first, and its note was refused on the event loop: in each retry again."""

    async def work(lease):
        with pytest.raises(SynchronousOnlyOperation, match=r"await astep\(\) or aexternal\(\)"):
            call(lease, word, "a", never)
        return await lease.astep("a", write, "a")

    asked = partial(idempotency.arun, work, key="k", scope="s", transaction="steps")
    assert run_in_loop(asked).result == "a"


@pytest.mark.leg("postgres18", "postgres16", "sqlite")  # MariaDB's driver does not know
def test_work_that_has_ended_its_transaction_is_told_of_it():
    def end():
        write("a")
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")

    def work(lease):
        with pytest.raises(WorkRolledBack, match="a statement has ended its transaction"):
            lease.step("a", end)
        assert kept().steps is None

    run(work)
    assert effects() == []
