"""Who owns the transaction: the attempt, the caller, or the test case (design: three ways)."""

from __future__ import annotations

import gc
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
from django_idempotency.context import running
from django_idempotency.engine import Engine
from django_idempotency.engine.renewal import LeaseRenewer
from django_idempotency.engine.transactions import OpenTransactions
from django_idempotency.records import State
from django_idempotency.testing import override_store
from tests.app.models import Child, Effect
from tests.claims import operation
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
class TestDefault:
    def test_outside_of_a_transaction_it_is_joined_and_inside_one_single(self):
        """A store on another alias cannot join it any more than a memory store can."""
        assert (mode_of(), mode_of(store="other")) == ("joined", "joined")
        with transaction.atomic():
            assert (mode_of(), mode_of(store="other")) == ("single", "separate")
        with transaction.atomic(using="other"):
            assert mode_of(store="other") == "single"
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

    def test_R83_the_claim_of_joined_is_visible_to_others_while_the_work_runs(
        self, other_connection
    ):
        def states(lease=None):
            with other_connection.cursor() as cursor:
                cursor.execute("SELECT state FROM idempotency_record")
                return [state for (state,) in cursor.fetchall()]

        assert run(states).result == ["IN_PROGRESS"]
        assert states() == ["COMPLETED"]


@pytest.mark.django_db(transaction=True)
class TestInsideTheCallersTransaction:
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
        assert len(names()) == 1
        assert not run().replayed

    def test_I13_work_and_record_commit_with_the_caller(self):
        with transaction.atomic():
            assert run(transaction="single").stored
        assert names() == ["x"]
        assert run(never).replayed

    def test_I13_work_and_record_roll_back_with_the_caller(self):
        with transaction.atomic():
            run()
            roll_back()
        assert names() == []
        with suppress(IntegrityError), transaction.atomic():
            run(orphan)
        assert names() == []
        with transaction.atomic():
            with transaction.atomic():
                run()
                roll_back()
            assert not run().replayed
        assert names() == ["x"]

    def test_R57_failed_work_rolls_back_alone_and_its_hooks_do_not_run(self):
        def boom(lease):
            effect()
            transaction.on_commit(never)
            fail()

        with transaction.atomic():
            Effect.objects.create(name="caller")
            with pytest.raises(ValueError, match="boom"):
                run(boom)
        assert names() == ["caller"]

    def test_R25_R85_a_claim_that_is_lost_does_not_poison_the_callers_transaction(self):
        with begin(transaction="separate") as attempt:
            with transaction.atomic():
                with pytest.raises(InProgress):
                    run(never)
                effect()
            attempt.complete("first")
        with transaction.atomic():
            assert run(never).result == "first"
        assert names() == ["x"]


@pytest.mark.django_db
def test_R84_inside_a_test_case_its_blocks_do_not_count(settings):
    """How calls and views go there on each store: tests/integration/database/test_testcase.py."""
    assert mode_of() == "joined"
    with transaction.atomic():
        assert mode_of() == "single"
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY}}
    run()
    assert run(never).replayed  # it has completed at once


class DjangoTestCase(TestCase):
    databases = ("default", "other")

    @override_store("memory")
    def test_R84_R94_the_captured_completion_comes_before_the_hooks_of_the_block_alone(self):
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


ALIASES = pytest.mark.parametrize(
    ("outer", "inner"), [("default", "other"), ("other", "default")], ids=["default", "other"]
)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestAStoreThatCannotJoin:
    """Its completion waits for the caller's commit: what rolls back is never replayed."""

    @pytest.fixture(autouse=True)
    def store(self, memory):
        return memory

    def test_I13_inside_one_it_completes_after_the_commit(self):
        with transaction.atomic():
            with pytest.raises(TransactionOpen):
                run(never, transaction="separate")
            with pytest.raises(ValueError, match="boom"):
                run(fail)
            assert kept().state is State.FAILED  # at once
            outcome = run()
            assert kept().state is State.IN_PROGRESS
            with pytest.raises(InProgress):
                run(never)
        assert kept().state is State.COMPLETED
        assert run(never).result == outcome.result

    @pytest.mark.parametrize("wish", [False, True])
    def test_I13_R91_for_coroutines_alike(self, wish):
        async def work(lease):
            await sync_to_async(transaction.set_rollback)(wish)

        with transaction.atomic():
            outcome = async_to_sync(idempotency.arun)(work, key="k", scope="s")
            assert kept().state is (State.FAILED if wish else State.IN_PROGRESS)
        assert (outcome.stored, run().replayed) == (not wish, not wish)

    @pytest.mark.parametrize("end", ["rollback", "savepoint", "commit"])
    def test_I13_after_a_rollback_nothing_is_replayed_and_the_lease_lapses(self, clock, end):
        """Also after that of a savepoint, and where a deferred constraint fails at the COMMIT."""
        savepoint = transaction.atomic() if end == "savepoint" else nullcontext()
        with suppress(IntegrityError), transaction.atomic(), savepoint:
            run(orphan if end == "commit" else effect)
            transaction.set_rollback(end != "commit")
        with pytest.raises(InProgress):
            run(never)
        clock.advance(60)
        assert not run().replayed
        assert names() == ["x"]

    def test_R69_lease_is_kept_for_as_long_as_the_completion_may_come(self, store):
        with transaction.atomic():
            waiting = OpenTransactions(store).outer()
            run(lambda lease: waiting.after_commit(lambda: None))
            with transaction.atomic():
                rolled_back = OpenTransactions(store).outer()
                rolled_back.after_commit(never)
                assert rolled_back.is_open()
                roll_back()
            assert not rolled_back.is_open()
            assert waiting.is_open()
        assert not waiting.is_open()

    def test_R91_rollback_of_the_callers_transaction_that_the_work_wished(self):
        with transaction.atomic():
            assert run(lambda lease: roll_back()).stored is False
        assert "set_rollback" not in vars(connections["default"])
        with transaction.atomic():
            roll_back()  # doomed before, which is no fault of the work
            assert run(lambda lease: "done").result == "done"

    def test_a_completion_after_a_commit_that_came_too_late_is_logged(self, clock, caplog):
        with transaction.atomic():
            run()
            clock.advance(61)
            in_thread(lambda: run(lambda lease: "B"))
        assert levels(caplog) == ["ERROR"]
        assert run(never).result == "B"

    @ALIASES
    @pytest.mark.parametrize("rolled_back", [None, "outer", "inner"])
    def test_I13_every_open_transaction_must_commit(self, outer, inner, rolled_back):
        with transaction.atomic(using=outer):
            with transaction.atomic(using=inner):
                run()
                transaction.set_rollback(rolled_back == "inner", using=inner)
            assert kept().state is State.IN_PROGRESS
            transaction.set_rollback(rolled_back == "outer", using=outer)
        assert kept().state is (State.IN_PROGRESS if rolled_back else State.COMPLETED)

    def test_I13_a_database_store_on_another_alias_alike(self, settings):
        settings.IDEMPOTENCY = {"default": {"OPTIONS": {"using": "other"}}}
        for rolled_back, state in ((True, State.IN_PROGRESS), (False, State.COMPLETED)):
            with transaction.atomic():
                run(key=state)
                assert kept(state).state is State.IN_PROGRESS
                transaction.set_rollback(rolled_back)
            assert kept(state).state is state
        assert names() == ["x"]

    def test_R94_the_completion_comes_before_the_callers_hooks_whatever_they_raise(self):
        def call():
            with transaction.atomic():
                transaction.on_commit(fail)
                with transaction.atomic():
                    run()

        with pytest.raises(ValueError, match="boom"):
            call()
        assert run(never).replayed

    @ALIASES
    def test_R94_with_two_aliases_before_the_hooks_of_the_last(self, clock, outer, inner):
        """However long they take."""
        told = []

        def take_long():
            clock.advance(61)
            told.append(in_thread(lambda: run(never)).replayed)

        with transaction.atomic(using=outer):
            transaction.on_commit(take_long, using=outer)
            with transaction.atomic(using=inner):
                run()
        assert told == [True]

    def test_R94_completions_of_inner_attempts_come_first(self, store, monkeypatch):
        """A savepoint that is rolled back takes its completion alone."""
        completed = []
        complete = store.complete

        def note(lease, *args, **options):
            completed.append(lease.request.key)
            return complete(lease, *args, **options)

        monkeypatch.setattr(store, "complete", note)
        with transaction.atomic():
            run(lambda lease: run(key="inner").result, key="outer")
            with transaction.atomic():
                run(key="gone")
                roll_back()
            run(key="next")
        assert completed == ["inner", "outer", "next"]
        assert kept("gone").state is State.IN_PROGRESS

    def test_R94_an_error_of_the_completion_is_told_and_the_callers_hooks_run(
        self, store, monkeypatch, caplog
    ):
        told = []
        monkeypatch.setattr(store, "complete", lambda *args, **options: 1 / 0)
        with transaction.atomic():
            run()
            transaction.on_commit(lambda: told.append("hook"))
        assert (told, levels(caplog)) == (["hook"], ["ERROR"])

    @pytest.mark.parametrize("end", ["commit", "rollback", "savepoint", "lost"])
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
                caller.after_commit(lambda: seen.append("completed"))
                if end == "savepoint":
                    raise ValueError
            transaction.set_rollback(end == "rollback")
            if end == "lost":
                connection.close()
        assert not caller.is_open()
        expected = {"commit": [True, "completed"], "rollback": [True], "savepoint": [False]}
        assert seen == expected.get(end, [])

    def test_R94_lease_of_a_kept_error_is_kept_too(self, store):
        wanted = []

        class Noting(LeaseRenewer):
            def add(self, store, lease, **options):
                wanted.append(options["wanted"])

        with transaction.atomic():
            guarded = replace(operation(renew=True), outer=OpenTransactions(store).outer())
            Engine(store, renewer=Noting()).run(guarded, fail, lambda error: "kept")
            assert wanted[-1]()
        assert not wanted[-1]()
        assert store.get(guarded.record_id).state is State.COMPLETED


@pytest.fixture
def manual():
    """Django runs no hooks without autocommit until it is on again, and that may be never."""
    connections["default"].ensure_connection()
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_R94_without_autocommit_no_hook_and_no_attempt_is_left_behind(manual):
    attempts = []
    for number in range(3):
        run(lambda lease: attempts.append(ref(running()[-1])), key=str(number))
    transaction.commit()
    gc.collect()
    assert [attempt() for attempt in attempts] == [None] * 3
    assert connections["default"].run_on_commit == []


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_I13_R94_without_autocommit_no_completion_can_wait(manual):
    for block in (nullcontext(), transaction.atomic()):
        with block, pytest.raises(TransactionOpen, match="Autocommit is off"):
            run(never, store="other")


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
        assert idempotency.current() is None

    @pytest.mark.parametrize("robust", [True, False])
    def test_C15_hook_that_raises_leaves_nothing_entered(self, store, caplog, robust):
        seen = []

        def work(lease):
            transaction.on_commit(fail, robust=robust)
            transaction.on_commit(lambda: seen.append(1))

        with suppress(ValueError), transaction.atomic():
            run(work, store=store)
        assert idempotency.current() is None
        assert (seen, levels(caplog)) == ([1] * robust, ["ERROR"] * robust)

    def test_R57_R86_hooks_wait_for_the_commit_and_those_of_what_was_rolled_back_do_not_run(
        self, store
    ):
        calls = []

        def work(lease):
            with transaction.atomic():
                transaction.on_commit(never)
                roll_back()
            transaction.on_commit(lambda: calls.append("kept"))

        with transaction.atomic():
            run(work, store=store)
            assert calls == []
        assert calls == ["kept"]
