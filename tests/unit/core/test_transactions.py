"""Who owns the transaction: the attempt, the caller, or the test case (design: three ways)."""

from __future__ import annotations

import gc
import itertools
import threading
from contextlib import nullcontext, suppress
from dataclasses import replace
from weakref import ref

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import IntegrityError, connections, transaction
from django.test import TestCase

import django_idempotency as idempotency
from django_idempotency import InProgress, TransactionOpen
from django_idempotency.conf import store_for
from django_idempotency.engine import Engine
from django_idempotency.engine.attempt import entered
from django_idempotency.engine.renewal import Keeper
from django_idempotency.engine.transactions import of_caller
from django_idempotency.records import State
from django_idempotency.testing import override_store
from tests.app.models import Child, Effect
from tests.unit.core.test_renewal import operation

numbers = itertools.count()


def run(func=None, key="k", **arguments):
    return idempotency.run(func or effect, key=key, scope="s", **arguments)


def effect(lease):
    return Effect.objects.create(name="x").pk


def never(lease):
    pytest.fail("ran")


def mode_of(**arguments):
    """The mode in which an attempt without a choice of its own runs here."""
    key = f"mode {next(numbers)}"
    return run(lambda lease: lease.request.transaction, key=key, **arguments).result


@pytest.mark.django_db(transaction=True)
class TestDefault:
    def test_outside_of_a_transaction_it_is_joined_and_inside_one_single(self):
        assert mode_of() == "joined"
        with transaction.atomic():
            assert mode_of() == "single"

    def test_inside_one_without_autocommit_it_is_single(self):
        transaction.set_autocommit(False)
        try:
            assert mode_of() == "single"
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)

    def test_for_coroutines_it_is_separate(self, in_loop):
        async def mode(lease):
            return lease.request.transaction

        assert in_loop(lambda: idempotency.arun(mode, key="k", scope="s")).result == "separate"

    def test_on_a_store_that_cannot_join_it_is_separate(self, memory):
        assert mode_of() == "separate"
        with transaction.atomic():
            assert mode_of(store="default") == "separate"

    def test_R83_the_claim_of_joined_is_visible_to_others_while_the_work_runs(
        self, other_connection
    ):
        def states():
            with other_connection.cursor() as cursor:
                cursor.execute("SELECT state FROM idempotency_record")
                return [state for (state,) in cursor.fetchall()]

        outcome = run(lambda lease: states())
        assert outcome.result == ["IN_PROGRESS"]
        assert states() == ["COMPLETED"]


@pytest.mark.django_db(transaction=True)
class TestInsideTheCallersTransaction:
    @pytest.mark.parametrize("chosen", ["joined", "separate"])
    def test_a_mode_that_commits_by_itself_raises_and_nothing_runs(self, settings, chosen):
        """Whether the call, an attempt or the setting chose it."""
        attempt = idempotency.attempt(key="k", scope="s", transaction=chosen)
        with transaction.atomic():
            with pytest.raises(TransactionOpen, match=chosen) as caught:
                run(never, transaction=chosen)
            with pytest.raises(TransactionOpen), attempt:
                pytest.fail("ran")
            settings.IDEMPOTENCY = {"default": {"TRANSACTION": chosen}}
            with pytest.raises(TransactionOpen):
                run(never)
            Effect.objects.create(name="goes on")
        assert isinstance(caught.value, RuntimeError)
        assert Effect.objects.count() == 1
        assert run().replayed is False

    def test_so_does_separate_on_a_store_that_cannot_join(self, memory):
        with transaction.atomic(), pytest.raises(TransactionOpen):
            run(never, transaction="separate")

    def test_I13_work_and_record_commit_with_the_caller(self):
        with transaction.atomic():
            assert run(transaction="single").stored
        assert Effect.objects.count() == 1
        assert run(never).replayed

    def test_I13_work_and_record_roll_back_with_the_caller(self):
        with transaction.atomic():
            run()
            transaction.set_rollback(True)
        assert Effect.objects.count() == 0
        assert run().replayed is False

    def test_I13_also_with_a_savepoint_of_the_callers(self):
        with transaction.atomic():
            with transaction.atomic():
                run()
                transaction.set_rollback(True)
            assert run().replayed is False
        assert Effect.objects.count() == 1

    def test_I13_a_deferred_constraint_that_fails_at_the_callers_commit(self):
        def orphan(lease):
            Child.objects.create(parent_id=10**9)

        def call():
            with transaction.atomic():
                run(orphan)

        with pytest.raises(IntegrityError):
            call()
        assert run().replayed is False

    def test_R57_failed_work_rolls_back_alone(self):
        def boom(lease):
            Effect.objects.create(name="x")
            raise ValueError("boom")

        with transaction.atomic():
            Effect.objects.create(name="caller")
            with pytest.raises(ValueError, match="boom"):
                run(boom)
        assert [effect.name for effect in Effect.objects.all()] == ["caller"]

    def test_R25_a_replay_inside(self):
        first = run()
        with transaction.atomic():
            assert run(never).result == first.result

    def test_R85_a_claim_that_is_lost_does_not_poison_the_callers_transaction(self):
        with idempotency.attempt(key="k", scope="s", transaction="separate") as attempt:
            with transaction.atomic():
                Effect.objects.create(name="before")
                with pytest.raises(InProgress):
                    run(never)
                Effect.objects.create(name="after")
            attempt.complete()
        assert Effect.objects.count() == 2

    def test_R86_hooks_wait_for_the_callers_commit(self):
        calls = []
        with transaction.atomic():
            run(lambda lease: transaction.on_commit(lambda: calls.append(1)))
            assert calls == []
        assert calls == [1]


@pytest.mark.django_db
class TestInsideATestCase:
    """
    The blocks of a TestCase, which pytest-django opens here, do not count.

    How calls and views go there on each store: tests/integration/database/test_testcase.py.
    """

    def test_R84_the_default_is_joined_and_inside_atomic_single(self):
        assert mode_of() == "joined"
        with transaction.atomic():
            assert mode_of() == "single"

    def test_R84_a_store_that_cannot_join_completes_at_once(self, memory):
        run()
        assert run(never).replayed


class DjangoTestCase(TestCase):
    databases = ("default", "other")

    @override_store("memory")
    def test_R84_a_completion_that_waits_for_a_commit_can_be_captured(self):
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            first = run()
        assert run(never).result == first.result

    @override_store("memory")
    def test_R94_the_captured_completion_comes_before_the_hooks_of_the_block_alone(self):
        told = []
        transaction.on_commit(lambda: told.append("of the test"))
        with self.captureOnCommitCallbacks(execute=True) as captured, transaction.atomic():
            transaction.on_commit(lambda: told.append(run(never).replayed))
            with transaction.atomic():
                run()
        assert told == [True]
        assert len(captured) == 2

    @override_store("memory")
    def test_R94_a_block_without_a_savepoint_can_be_captured(self):
        with transaction.atomic(savepoint=False):
            transaction.on_commit(never)
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic(savepoint=False):
            run()
        assert run(never).replayed

    @override_store("memory")
    def test_R94_on_two_aliases_both_are_captured(self):
        with (
            self.captureOnCommitCallbacks(using="default", execute=True),
            self.captureOnCommitCallbacks(using="other", execute=True),
            transaction.atomic(),
            transaction.atomic(using="other"),
        ):
            run()
        assert run(never).replayed


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestAStoreThatCannotJoin:
    """Its completion waits for the caller's commit: what rolls back is never replayed."""

    aliases = pytest.mark.parametrize(
        ("outer", "inner"), [("default", "other"), ("other", "default")], ids=["default", "other"]
    )

    @pytest.fixture(autouse=True)
    def store(self, memory):
        return memory

    def test_I13_inside_one_it_completes_after_the_commit(self, store):
        with transaction.atomic():
            outcome = run()
            assert store.get(outcome.record_id).state is State.IN_PROGRESS
            with pytest.raises(InProgress):
                run(never)
        assert store.get(outcome.record_id).state is State.COMPLETED
        assert run(never).result == outcome.result

    def test_I13_for_coroutines_alike(self, store):
        async def work(lease):
            return "done"

        arun = async_to_sync(idempotency.arun)
        with transaction.atomic():
            outcome = arun(work, key="k", scope="s")
            assert store.get(outcome.record_id).state is State.IN_PROGRESS
        assert run(never).result == "done"

    @pytest.mark.parametrize("end", ["rollback", "savepoint", "commit"])
    def test_I13_after_a_rollback_nothing_is_replayed_and_the_lease_lapses(self, clock, end):
        """Also after that of a savepoint, and where a deferred constraint fails at the COMMIT."""

        def work(lease):
            effect(lease)
            if end == "commit":
                Child.objects.create(parent_id=10**9)

        savepoint = transaction.atomic() if end == "savepoint" else nullcontext()
        with suppress(IntegrityError), transaction.atomic(), savepoint:
            run(work)
            transaction.set_rollback(end != "commit")
        with pytest.raises(InProgress):
            run(never)
        clock.tick(60)
        assert run().replayed is False
        assert Effect.objects.count() == 1

    def test_R69_lease_is_kept_for_as_long_as_the_completion_may_come(self, store):
        with transaction.atomic():
            kept = of_caller(store)
            run(lambda lease: kept.after_commit(lambda: None))  # a hook of another attempt, too
            with transaction.atomic():
                rolled_back = of_caller(store)
                rolled_back.after_commit(never)
                assert rolled_back.is_open()
                transaction.set_rollback(True)
            assert not rolled_back.is_open()
            assert kept.is_open()
        assert not kept.is_open()

    def test_R91_for_coroutines_alike(self):
        async def wish(lease):
            await sync_to_async(transaction.set_rollback)(True)

        arun = async_to_sync(idempotency.arun)
        with transaction.atomic():
            assert arun(wish, key="k", scope="s").stored is False
        assert run().replayed is False

    def test_R91_rollback_of_the_callers_transaction_that_the_work_wished(self):
        with transaction.atomic():
            outcome = run(lambda lease: transaction.set_rollback(True))
        assert outcome.stored is False
        assert "set_rollback" not in vars(connections["default"])
        assert run().replayed is False

    def test_R91_transaction_that_was_doomed_before_is_no_fault_of_the_work(self):
        with transaction.atomic():
            transaction.set_rollback(True)
            assert run(lambda lease: "done").result == "done"

    def test_I13_without_autocommit_there_is_no_commit_to_wait_for_so_nothing_runs(self, store):
        """Django calls no on_commit hooks in manual transaction management."""
        connections["default"].ensure_connection()
        transaction.set_autocommit(False)
        try:
            with pytest.raises(TransactionOpen):
                run(never)
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert run().replayed is False

    def test_failed_work_is_failed_at_once(self, store):
        def boom(lease):
            raise ValueError("boom")

        with transaction.atomic():
            with pytest.raises(ValueError, match="boom"):
                run(boom)
            assert run().replayed is False
        assert run(never).replayed

    def test_a_completion_after_a_commit_that_came_too_late_is_logged(self, clock, caplog):
        with transaction.atomic():
            run()
            clock.tick(61)
            in_thread(lambda: run(lambda lease: "B"))
        assert [entry.levelname for entry in caplog.records] == ["ERROR"]
        assert run(never).result == "B"

    @aliases
    @pytest.mark.parametrize("rolled_back", [None, "outer", "inner"])
    def test_I13_every_open_transaction_must_commit(self, store, outer, inner, rolled_back):
        with transaction.atomic(using=outer):
            with transaction.atomic(using=inner):
                outcome = run()
                transaction.set_rollback(rolled_back == "inner", using=inner)
            assert store.get(outcome.record_id).state is State.IN_PROGRESS
            transaction.set_rollback(rolled_back == "outer", using=outer)
        expected = State.IN_PROGRESS if rolled_back else State.COMPLETED
        assert store.get(outcome.record_id).state is expected

    def test_R94_the_completion_comes_before_the_callers_hooks_whatever_they_raise(self):
        def fail():
            raise ValueError("of the caller")

        def call():
            with transaction.atomic():
                transaction.on_commit(fail)
                with transaction.atomic():
                    run()

        with pytest.raises(ValueError, match="of the caller"):
            call()
        assert run(never).replayed

    def test_R94_nor_do_they_outlive_its_lease(self, clock):
        told = []

        def take_long():
            clock.tick(61)
            told.append(in_thread(lambda: run(never)).replayed)

        with transaction.atomic():
            transaction.on_commit(take_long)
            run()
        assert told == [True]

    @aliases
    def test_R94_with_two_aliases_before_the_hooks_of_the_last(self, outer, inner):
        told = []

        def tell():
            told.append(run(never).replayed)

        with transaction.atomic(using=outer):
            transaction.on_commit(tell, using=outer)
            with transaction.atomic(using=inner):
                run()
        assert told == [True]

    def test_R94_completions_of_inner_attempts_come_first(self, store, monkeypatch):
        completed = []
        complete = store.complete

        def note(lease, *args, **options):
            completed.append(lease.request.key)
            return complete(lease, *args, **options)

        monkeypatch.setattr(store, "complete", note)
        with transaction.atomic():
            run(lambda lease: run(key="inner").result, key="outer")
            run(key="next")
        assert completed == ["inner", "outer", "next"]

    def test_R94_a_savepoint_that_is_rolled_back_takes_its_completion_alone(self, store):
        with transaction.atomic():
            kept = run(key="kept")
            with transaction.atomic():
                gone = run(key="gone")
                transaction.set_rollback(True)
        assert store.get(kept.record_id).state is State.COMPLETED
        assert store.get(gone.record_id).state is State.IN_PROGRESS

    def test_R94_an_error_of_the_completion_is_told_and_the_callers_hooks_run(
        self, store, monkeypatch, caplog
    ):
        def complete(*args, **options):
            raise RuntimeError("broken")

        told = []
        monkeypatch.setattr(store, "complete", complete)
        with transaction.atomic():
            run()
            transaction.on_commit(lambda: told.append("hook"))
        assert told == ["hook"]
        assert [entry.levelname for entry in caplog.records] == ["ERROR"]

    @pytest.mark.parametrize("end", ["commit", "rollback", "savepoint", "lost"])
    def test_R94_lease_is_kept_while_the_commit_runs_and_until_the_hook_is_gone(
        self, monkeypatch, end
    ):
        caller = None
        seen = []
        commit = connections["default"].commit
        rollback = connections["default"]._rollback

        def while_it_runs(finish):
            def call():
                seen.append(caller.is_open())
                finish()

            return call

        monkeypatch.setattr(connections["default"], "commit", while_it_runs(commit))
        monkeypatch.setattr(connections["default"], "_rollback", while_it_runs(rollback))
        with transaction.atomic(), suppress(ValueError):
            with transaction.atomic():
                caller = of_caller(store_for())
                caller.after_commit(lambda: seen.append("completed"))
                if end == "savepoint":
                    raise ValueError
            if end == "rollback":
                transaction.set_rollback(True)
            if end == "lost":
                connections["default"].close()
        assert not caller.is_open()
        expected = {"commit": [True, "completed"], "rollback": [True], "savepoint": [False]}
        assert seen == expected.get(end, [])

    def test_R94_lease_of_a_kept_error_is_kept_too(self, store):
        keeper = Noting()

        def fail(lease):
            raise ValueError

        with transaction.atomic():
            guarded = replace(operation(), caller=of_caller(store))
            Engine(store, keeper=keeper).run(guarded, fail, lambda error: "kept")
            assert [wanted() for wanted in keeper.kept.values()] == [True]
        assert [wanted() for wanted in keeper.kept.values()] == [False]
        assert store.get(guarded.record_id).state is State.COMPLETED


class Noting(Keeper):
    """Notes which leases it is to renew, and for how long they are wanted."""

    def __init__(self):
        self.kept = {}
        super().__init__()

    def add(self, store, lease, *, wanted=None):
        self.kept[lease] = wanted

    def remove(self, lease):
        del self.kept[lease]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestWithoutAutocommit:
    """Django runs no hooks then until autocommit is on, and that may be never."""

    @pytest.fixture(autouse=True)
    def manual(self):
        connections["default"].ensure_connection()
        transaction.set_autocommit(False)
        yield
        transaction.rollback()
        transaction.set_autocommit(True)

    def test_R94_no_hook_and_no_attempt_is_left_behind(self):
        attempts = []
        for number in range(3):
            run(lambda lease: attempts.append(ref(entered()[-1])), key=str(number))
        transaction.commit()
        gc.collect()
        assert [attempt() for attempt in attempts] == [None] * 3
        assert connections["default"].run_on_commit == []

    def test_R94_nor_can_a_completion_wait_for_the_commit_of_a_block(self):
        with transaction.atomic(), pytest.raises(TransactionOpen, match="Autocommit is off"):
            run(never, store="other")


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestADatabaseStoreOnAnotherAlias:
    """It cannot join a transaction of another database any more than a memory store can."""

    def test_in_a_transaction_of_its_own_alias_alone_it_is_single(self):
        assert mode_of(store="other") == "joined"
        with transaction.atomic(using="other"):
            assert mode_of(store="other") == "single"

    @pytest.mark.parametrize("rolled_back", [True, False])
    def test_I13_it_waits_for_the_commit(self, rolled_back):
        with transaction.atomic():
            outcome = run(store="other")
            assert store_for("other").get(outcome.record_id).state is State.IN_PROGRESS
            transaction.set_rollback(rolled_back)
        assert Effect.objects.count() == (0 if rolled_back else 1)
        expected = State.IN_PROGRESS if rolled_back else State.COMPLETED
        assert store_for("other").get(outcome.record_id).state is expected


def in_thread(function):
    """Call `function` in a thread that has no transaction open."""

    def call():
        try:
            results.append(function())
        finally:
            connections.close_all()

    results = []
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(30)
    return results[0]


@pytest.mark.django_db(transaction=True)
class TestHooks:
    """The on_commit hooks that work leaves in the caller's transaction are part of it (C15)."""

    @pytest.fixture(params=["default", "memory"])
    def store(self, request, settings):
        backend = "django_idempotency.stores.memory.MemoryStore"
        settings.IDEMPOTENCY = {"default": {}, "memory": {"BACKEND": backend}}
        return request.param

    def test_C15_current_is_the_lease_in_the_hooks_of_the_work_alone(self, store):
        seen = []

        def work(lease):
            transaction.on_commit(lambda: seen.append(idempotency.current() is lease))
            transaction.on_commit(lambda: seen.append(idempotency.current() is lease), robust=True)

        with transaction.atomic():
            transaction.on_commit(lambda: seen.append(idempotency.current()))
            run(work, store=store)
            transaction.on_commit(lambda: seen.append(idempotency.current()))
            assert idempotency.current() is None

        assert seen == [None, True, True, None]
        assert idempotency.current() is None

    def test_C15_inner_and_outer_work_have_their_own(self, store):
        seen = []

        def leave(lease):
            transaction.on_commit(lambda: seen.append(idempotency.current() is lease))

        def outer(lease):
            leave(lease)
            run(leave, key="inner", store=store)
            leave(lease)

        with transaction.atomic():
            run(outer)

        assert seen == [True, True, True]

    @pytest.mark.parametrize("robust", [True, False])
    def test_C15_hook_that_raises_leaves_nothing_entered(self, store, caplog, robust):
        def fail():
            raise RuntimeError

        seen = []

        def work(lease):
            transaction.on_commit(fail, robust=robust)
            transaction.on_commit(lambda: seen.append(1))

        with suppress(RuntimeError), transaction.atomic():
            run(work, store=store)

        assert idempotency.current() is None
        assert seen == [1] * robust
        assert [entry.levelname for entry in caplog.records] == ["ERROR"] * robust

    def test_R57_hooks_of_what_was_rolled_back_do_not_run(self, store):
        calls = []

        def work(lease):
            with transaction.atomic():
                transaction.on_commit(lambda: calls.append("rolled back"))
                transaction.set_rollback(True)
            transaction.on_commit(lambda: calls.append("kept"))

        with transaction.atomic():
            run(work, store=store)

        assert calls == ["kept"]

    def test_hooks_of_work_that_failed_do_not_run(self):
        calls = []

        def work(lease):
            transaction.on_commit(lambda: calls.append(1))
            raise RuntimeError

        with transaction.atomic():
            with pytest.raises(RuntimeError):
                run(work)
            transaction.on_commit(lambda: calls.append(2))

        assert calls == [2]
