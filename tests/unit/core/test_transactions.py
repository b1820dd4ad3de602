"""Who owns the transaction: the attempt, the caller, or the test case (design: three ways)."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import IntegrityError, connections, transaction
from django.test import TestCase

import django_idempotency as idempotency
from django_idempotency import InProgress, TransactionOpen, signals
from django_idempotency.conf import store_for
from django_idempotency.engine.operation import OpenTransactions
from django_idempotency.records import State
from django_idempotency.testing import override_store
from django_idempotency.transactions.outer import after_commit
from tests.app.models import Child, Effect
from tests.unit.core.conftest import MEMORY, begin, fail, kept, levels, names, never
from tests.unit.core.conftest import run as run_work


def run(func=None, key="k", **arguments):
    return run_work(func or effect, key, **arguments)


def effect(lease=None):
    return Effect.objects.create(name="x").pk


def orphan(lease=None):
    effect()
    Child.objects.create(parent_id=10**9)


def roll_back(using="default"):
    transaction.set_rollback(True, using=using)


def mode_of(**arguments):
    """The mode in which an attempt without a choice of its own runs here."""
    seen = []
    with suppress(ZeroDivisionError):
        run(lambda lease: seen.append(lease.request.transaction) or 1 / 0, **arguments)
    return seen[0]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_default_is_joined_outside_of_a_transaction_and_single_inside(in_loop):
    """A store on another alias cannot join it any more than a memory store can."""

    async def mode(lease):
        return lease.request.transaction

    assert (mode_of(), mode_of(store="other")) == ("joined", "joined")
    with transaction.atomic():
        assert (mode_of(), mode_of(store="other")) == ("single", "separate")
    with transaction.atomic(using="other"):
        assert mode_of(store="other") == "single"
        with transaction.atomic():
            assert (mode_of(), mode_of(store="other")) == ("single", "single")
    transaction.set_autocommit(False)
    try:
        assert mode_of() == "single"
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert in_loop(lambda: idempotency.arun(mode, key="k", scope="s")).result == "separate"


@pytest.mark.parametrize(("alias", "is_open"), [("default", True), ("other", False)])
def test_with_AUTOCOMMIT_off_a_transaction_of_the_store_is_open_before_its_first_use(
    monkeypatch, alias, is_open
):
    """On another alias, which the work may not use at all, none is."""
    monkeypatch.setitem(connections.settings[alias], "AUTOCOMMIT", False)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(OpenTransactions(store_for())))
    thread.start()
    thread.join()
    assert [(it.within, not it.may_wait) for it in seen] == [(is_open, is_open)]


@pytest.mark.django_db(transaction=True)
class TestInsideTheCallersTransaction:
    """Imported by tests/integration/database/test_engine.py."""

    @pytest.mark.parametrize("chosen", ["joined", "separate"])
    def test_a_mode_that_commits_by_itself_raises_and_nothing_runs(self, settings, chosen):
        """Whether the call, an attempt or the setting chose it."""
        attempt = begin(transaction=chosen)
        with transaction.atomic():
            with pytest.raises(TransactionOpen, match=chosen):
                run(never, transaction=chosen)
            with pytest.raises(TransactionOpen), attempt:
                never()
            settings.IDEMPOTENCY = {"default": {"TRANSACTION": chosen}}
            with pytest.raises(TransactionOpen):
                run(never)
            effect()
        assert names() == ["x"]

    def test_I13_work_and_record_roll_back_with_the_caller(self):
        """And commit with it."""
        with transaction.atomic():
            run()
            roll_back()
        with suppress(IntegrityError), transaction.atomic():
            run(orphan)
        assert names() == []
        with transaction.atomic():
            with transaction.atomic():
                run()
                roll_back()
            assert run(transaction="single").stored
        assert names() == ["x"]
        assert run(never).replayed

    @pytest.mark.parametrize("coroutine", [False, True])
    def test_it_gets_no_hook_where_nobody_hears_of_the_end(self, coroutine):
        """Who captures the hooks of a TestCase gets those of the work alone."""

        async def work(lease):
            return 1

        with transaction.atomic():
            if coroutine:
                async_to_sync(idempotency.arun)(work, key="k", scope="s")
            else:
                run()
            assert connections["default"].run_on_commit == []


@pytest.mark.django_db
def test_R84_inside_a_test_case_its_blocks_do_not_count(settings):
    """How calls and views go there on each store: tests/integration/database/test_testcase.py."""
    assert mode_of() == "joined"
    with transaction.atomic():
        assert mode_of() == "single"
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY}}
    run()
    assert run(never).replayed  # it has completed at once


@override_store("memory")
class DjangoTestCase(TestCase):
    def test_R84_R94_the_captured_completion_comes_before_the_hooks_of_the_block_alone(self):
        told = []
        transaction.on_commit(lambda: told.append("of the test"))
        with self.captureOnCommitCallbacks(execute=True) as captured, transaction.atomic():
            transaction.on_commit(lambda: told.append(run(never).replayed))
            with transaction.atomic():
                run()
        assert told == [True]
        assert len(captured) == 2

    def test_R94_a_block_without_a_savepoint_can_be_captured(self):
        with transaction.atomic(savepoint=False):
            transaction.on_commit(never)
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic(savepoint=False):
            run()
        assert run(never).replayed


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestAStoreThatCannotJoin:
    """Its completion waits for the caller's commit: what rolls back is never replayed."""

    @pytest.fixture(autouse=True)
    def store(self, memory):
        return memory

    def test_I13_inside_one_it_completes_after_the_commit(self):
        with transaction.atomic():
            with pytest.raises(ValueError, match="boom"):
                run(fail)
            assert kept().state is State.FAILED  # at once
            outcome = run()
            with pytest.raises(InProgress):
                run(never)
        assert run(never).result == outcome.result

    @pytest.mark.parametrize("end", ["savepoint", "commit"])
    def test_I13_after_a_rollback_nothing_is_replayed_and_the_lease_lapses(self, clock, end):
        """That of a savepoint, or where a deferred constraint fails at the COMMIT."""
        savepoint = transaction.atomic() if end == "savepoint" else nullcontext()
        with suppress(IntegrityError), transaction.atomic(), savepoint:
            run(orphan if end == "commit" else effect)
            transaction.set_rollback(end == "savepoint")
        with pytest.raises(InProgress):
            run(never)
        clock.advance(60)
        assert not run().replayed
        assert names() == ["x"]

    @pytest.mark.parametrize("coroutine", [False, True])
    def test_I13_R91_rollback_of_the_callers_transaction_that_the_work_wished(self, coroutine):
        async def wished(lease):
            await sync_to_async(transaction.set_rollback)(wish)

        for wish in (True, False):
            with transaction.atomic():
                if coroutine:
                    outcome = async_to_sync(idempotency.arun)(wished, key="k", scope="s")
                else:
                    outcome = run(lambda lease, wish=wish: transaction.set_rollback(wish))
                assert kept().state is (State.FAILED if wish else State.IN_PROGRESS)
            assert "set_rollback" not in vars(connections["default"])
            assert outcome.stored is not wish
        with transaction.atomic():
            roll_back()  # doomed before, which is no fault of the work
            assert run(lambda lease: "done", "doomed").result == "done"

    @pytest.mark.parametrize(("outer", "inner"), [("default", "other"), ("other", "default")])
    def test_I13_R94_every_open_transaction_must_commit_and_hooks_of_the_last_come_later(
        self, outer, inner
    ):
        told = []
        for rolled_back in (outer, inner, None):
            key = str(rolled_back)
            with transaction.atomic(using=outer):
                transaction.on_commit(lambda key=key: told.append(kept(key).state), using=outer)
                with transaction.atomic(using=inner):
                    run(key=key)
                    transaction.set_rollback(rolled_back == inner, using=inner)
                assert kept(key).state is State.IN_PROGRESS
                transaction.set_rollback(rolled_back == outer, using=outer)
            assert kept(key).state is (State.IN_PROGRESS if rolled_back else State.COMPLETED)
        assert told == [State.IN_PROGRESS, State.COMPLETED]

    def test_R94_the_completion_comes_before_the_callers_hooks_whatever_they_raise(self):
        with suppress(ValueError), transaction.atomic():
            transaction.on_commit(fail)
            with transaction.atomic():
                run()
        assert run(never).replayed

    def test_R94_completions_of_inner_attempts_come_first(self, store):
        """A savepoint that is rolled back takes its completion alone."""
        store.complete = Mock(wraps=store.complete)
        with transaction.atomic():
            run(lambda lease: run(key="inner").result, key="outer")
            with transaction.atomic():
                run(key="gone")
                roll_back()
            run(key="next")
        completed = [call.args[0].request.key for call in store.complete.call_args_list]
        assert completed == ["inner", "outer", "next"]
        assert kept("gone").state is State.IN_PROGRESS

    def test_R94_what_is_called_after_the_commit_keeps_no_hook_of_the_caller_from_running(self):
        told = Mock()
        with transaction.atomic():
            outer = OpenTransactions(store_for()).outer()
            outer.after_commit(Mock(side_effect=ZeroDivisionError))
            transaction.on_commit(told)
        assert told.call_count == 1

    @pytest.mark.parametrize("end", ["commit", "rollback", "savepoint", "lost", "lost before"])
    def test_R94_lease_is_kept_while_the_commit_runs_and_until_the_hook_is_gone(
        self, monkeypatch, end
    ):
        caller, seen, connection = None, [], connections["default"]

        def while_it_runs(finish):
            return lambda: (seen.append(caller.is_open()), finish())

        monkeypatch.setattr(connection, "commit", while_it_runs(connection.commit))
        monkeypatch.setattr(connection, "_rollback", while_it_runs(connection._rollback))
        with transaction.atomic(), suppress(ValueError):
            with transaction.atomic():
                caller = OpenTransactions(store_for()).outer()
                if end == "lost before":
                    connection.close()
                caller.after_commit(lambda: seen.append("completed"))
                if end == "savepoint":
                    raise ValueError
            transaction.set_rollback(end == "rollback")
            if end == "lost":
                connection.close()
        assert not caller.is_open()
        expected = {"commit": [True, "completed"], "rollback": [True], "savepoint": [False]}
        assert seen == expected.get(end, [])

    def test_R94_lease_is_kept_until_the_last_transaction_commits(self):
        with transaction.atomic():
            with transaction.atomic(using="other"):
                caller = OpenTransactions(store_for()).outer()
                caller.after_commit(Mock())
            assert caller.is_open()
        assert not caller.is_open()

    def test_R94_work_that_closes_the_callers_connection_leaves_its_record_in_progress(self):
        with transaction.atomic():
            run(lambda lease: connections["default"].close())
        assert kept().state is State.IN_PROGRESS


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_I13_R94_without_autocommit_no_hook_is_left_behind_and_no_completion_can_wait():
    """Django runs no hooks until autocommit is on again, and that may be never."""
    told = Mock()
    with transaction.atomic():
        effect()
    transaction.set_autocommit(False)
    signals.completed.connect(told)
    try:
        with pytest.raises(TransactionOpen, match="Autocommit is off"):
            run(never, store="other")
        after_commit("default", told)
        assert (connections["default"].run_on_commit, told.call_count) == ([], 1)
        run()
        assert (connections["default"].run_on_commit, told.call_count) == ([], 2)
        with transaction.atomic():
            run(key="in a block")
            assert (connections["default"].run_on_commit, told.call_count) == ([], 3)
        transaction.commit()
        for block in (nullcontext(), transaction.atomic()):
            with block, pytest.raises(TransactionOpen, match="Autocommit is off"):
                run(never, store="other")
    finally:
        signals.completed.disconnect(told)
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.django_db(transaction=True)
class TestHooks:
    """The on_commit hooks that work leaves in the caller's transaction are part of it (C15)."""

    @pytest.fixture(params=["default", "memory"])
    def store(self, request, settings):
        settings.IDEMPOTENCY = {"default": {}, "memory": {"BACKEND": MEMORY}}
        return request.param

    def test_C15_current_is_the_lease_in_the_hooks_of_the_work_alone(self, store):
        seen = []

        def leave(lease=None, **robust):
            hook = lambda: seen.append(idempotency.current() is lease)  # noqa: E731
            transaction.on_commit(hook, **robust)

        def work(lease):
            leave(lease)
            run(leave, key="inner", store=store)
            leave(lease, robust=True)

        with transaction.atomic():
            leave()
            run(work, store=store)
            leave()
            assert idempotency.current() is None
        assert seen == [True] * 5

    def test_C15_without_autocommit_it_is_the_lease_in_a_hook_that_waits_for_autocommit(self):
        seen = []

        def work(lease):
            with transaction.atomic():
                transaction.on_commit(lambda: seen.append(idempotency.current() is lease))

        connections["default"].ensure_connection()
        transaction.set_autocommit(False)
        try:
            run(work)
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert seen == [True]

    def test_C15_hook_of_work_that_has_failed_is_the_callers_own(self, store):
        """On a store that joins, the savepoint of the work has taken it back."""
        seen = []

        def work(lease):
            transaction.on_commit(lambda: seen.append(idempotency.current()))
            fail()

        with transaction.atomic(), suppress(ValueError):
            run(work, store=store)
        assert seen == ([None] if store == "memory" else [])

    def test_C15_hook_that_raises_leaves_nothing_entered(self, store, caplog):
        seen = []

        def work(lease):
            transaction.on_commit(fail, robust=True)
            transaction.on_commit(lambda: seen.append(1))
            transaction.on_commit(fail)
            transaction.on_commit(never)

        with suppress(ValueError), transaction.atomic():
            run(work, store=store)
        assert idempotency.current() is None
        assert (seen, levels(caplog)) == ([1], ["ERROR"])
