"""Steps in the database: work and note commit together, once; what is refused is undone."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial

import pytest
from django.core.exceptions import ObjectDoesNotExist
from django.db import (
    DataError,
    Error,
    IntegrityError,
    InternalError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)

import django_idempotency as idempotency
from django_idempotency import (
    LeaseLost,
    NotDone,
    StoreError,
    TransactionOpen,
    Uncertain,
    WorkRolledBack,
    journal,
)
from django_idempotency.conf import store_for
from django_idempotency.exceptions import InProgress
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.testing import crash_at
from tests.app.models import Child, Effect, Unique
from tests.integration.database.claims import LONG_AGO, effects
from tests.integration.database.sessions import PATIENCE, execute
from tests.unit.core.conftest import kept, never, noted
from tests.unit.core.steps import Boom, arun, run

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16", "sqlite", "mariadb"),
]


@pytest.fixture(autouse=True)
def default_store(settings):
    settings.IDEMPOTENCY = {"default": {}, "other": {"OPTIONS": {"using": "other"}}}


def lapse():
    assert IdempotencyRecord.objects.update(lease_until=LONG_AGO) == 1


def effect(name="a"):
    """Be the work of a step."""
    assert connection.in_atomic_block
    Effect.objects.create(name=name)
    return name


# Work and note are one.


def test_T1_T2_T3_a_step_commits_with_its_note_and_runs_once():
    def work(lease, fails):
        one = lease.step("one", effect, "one")
        assert not connection.in_atomic_block
        assert (kept().state, noted()[0]) == (State.IN_PROGRESS, "one")
        two = lease.external("two", lambda key: (key, 2), uncertain="repeat")
        if fails:
            raise Boom
        return [one, two, lease.step("three", effect, "three")]

    with pytest.raises(Boom):
        run(partial(work, fails=True))
    assert (kept().state, noted()) == (State.FAILED, ["one", "two"])
    outcome = run(partial(work, fails=False))
    assert outcome.result[0::2] == ["one", "three"]
    assert outcome.result[1][1:] == [2]
    assert effects() == ["one", "three"]
    assert run(never).replayed


def test_T7_what_raises_rolls_back_and_is_not_noted():
    def breaks():
        effect()
        raise Boom

    def work(lease):
        with pytest.raises(Boom):
            lease.step("a", breaks)
        assert effects() == []
        lease.step("a", effect)
        raise Boom

    with pytest.raises(Boom):
        run(work)
    assert (effects(), noted()) == (["a"], ["a"])


def swallow():
    """Go on after a statement that has failed, outside of an inner atomic()."""
    effect()
    Unique.objects.create(name="taken")
    with suppress(IntegrityError):
        Unique.objects.create(name="taken")
    return 1


def wish():
    effect()
    transaction.set_rollback(True)
    return 1


@pytest.mark.parametrize("rolls_back", [swallow, wish])
def test_R91_work_that_can_only_roll_back_is_no_step(rolls_back):
    def work(lease):
        with pytest.raises(WorkRolledBack, match="'a' has returned, and can only be rolled back"):
            lease.step("a", rolls_back)
        assert lease.step("a", effect) == "a"
        raise Boom

    with pytest.raises(Boom):
        run(work)
    assert (effects(), Unique.objects.count(), noted()) == (["a"], 0, ["a"])


def test_T8_a_result_that_cannot_be_noted_rolls_the_step_back():
    def work(lease):
        with pytest.raises(TypeError, match="cannot be kept as JSON"):
            lease.step("a", lambda: effect() and object())
        with pytest.raises(idempotency.ResultTooLarge):
            lease.step("a", lambda: effect() * 200)
        raise Boom

    with pytest.raises(Boom):
        run(work, max_steps_bytes=100)
    assert (effects(), kept().steps) == ([], None)


def test_T9_a_hook_that_raises_leaves_the_step():
    """Its caller has not got the result: it may ask again, and gets what is noted."""

    def with_hook():
        transaction.on_commit(fail)
        return effect()

    def fail():
        assert noted() == ["a"]
        raise Boom

    def work(lease):
        with pytest.raises(Boom):
            lease.step("a", with_hook)
        assert lease.step("a", never) == "a"
        with pytest.raises(RuntimeError, match="names another step"):
            lease.step("a", never)
        raise Boom

    with pytest.raises(Boom):
        run(work)
    assert run(lambda lease: lease.step("a", never)).result == "a"
    assert effects() == ["a"]


def test_T5_a_step_in_a_hook_of_a_step_is_refused():
    def hook():
        with pytest.raises(RuntimeError, match="is inside of another"):
            idempotency.step("b", never)

    def with_hook():
        transaction.on_commit(hook)
        return effect()

    run(lambda lease: lease.step("a", with_hook))
    assert effects() == ["a"]


@pytest.mark.leg("postgres18", "postgres16", "sqlite")  # MariaDB checks no key at the commit
def test_an_error_of_the_database_at_the_commit_passes_on_and_the_step_may_run_again():
    def orphan():
        effect()
        Child.objects.create(parent_id=404)
        return 1

    def work(lease):
        with pytest.raises(IntegrityError):
            lease.step("a", orphan)
        return lease.step("a", effect)

    assert run(work).result == "a"
    assert effects() == ["a"]


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("state", ["P0001", "22012"])
def test_T7_a_trigger_that_refuses_the_commit_passes_on_and_the_step_may_run_again(state):
    """`P0001` is that of RAISE EXCEPTION, and "22012" a division by zero."""

    def refused():
        effect()
        execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END$$"
        )
        execute(
            "CREATE CONSTRAINT TRIGGER refusal AFTER INSERT ON app_unique "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        Unique.objects.create(name="a")

    def work(lease):
        with pytest.raises((DataError, InternalError, ProgrammingError), match="no"):
            lease.step("a", refused)
        return lease.step("a", effect)

    assert run(work).result == "a"
    assert effects() == ["a"]


# Who else is there.


def test_T6_an_open_transaction_is_refused_and_a_guarded_call_within_a_step_is_single():
    def inner():
        outcome = idempotency.run(lambda lease: effect("inner"), key="inner", scope="s")
        assert idempotency.current() is not None
        return outcome.result

    def breaks():
        inner()
        raise Boom

    def work(lease):
        with transaction.atomic(), pytest.raises(TransactionOpen):
            lease.step("a", never)
        with pytest.raises(Boom):
            lease.step("a", breaks)
        assert kept("inner") is None  # it was undone with the step
        return lease.step("a", inner)

    assert run(work).result == "inner"
    assert (effects(), kept("inner").state) == (["inner"], State.COMPLETED)


@pytest.mark.parametrize("at", ["work", "note"])
def test_P10_a_late_note_is_refused_and_its_work_undone(at):
    """Another attempt has run the step meanwhile."""

    def second(lease):
        return lease.step("a", effect, "second")

    def stall(lease):
        def late():
            if at == "note" and connection.vendor != "sqlite":
                lapse_elsewhere()
            return effect("first")

        def lapse_elsewhere():
            thread = threading.Thread(target=take_over)
            thread.start()
            thread.join(PATIENCE)

        def take_over():
            try:
                lapse()
                assert run(second).result == "second"
            finally:
                connections.close_all()

        if at == "work" or connection.vendor == "sqlite":
            take_over()
        with pytest.raises(LeaseLost):
            lease.step("a", late)
        assert lease.lost
        raise Boom

    with pytest.raises(Boom):
        run(stall, renew=False)
    assert effects() == ["second"]
    assert run(never).result == "second"


@pytest.mark.leg("postgres18", "postgres16", "mariadb")  # in SQLite a writer waits
def test_P11_nobody_takes_over_between_note_and_commit(monkeypatch):
    """The row is locked: a claim is told that the attempt is in progress, and does not wait."""
    told = []

    def claim():
        try:
            lapse_is_locked = IdempotencyRecord.objects.filter(steps__isnull=False).exists()
            assert not lapse_is_locked
            run(never)
        except InProgress:
            told.append("in progress")
        finally:
            connections.close_all()

    def stall(lease, entry, **keywords):
        note(lease, entry, **keywords)
        thread = threading.Thread(target=claim)
        thread.start()
        thread.join(PATIENCE)
        assert told == ["in progress"]

    store = store_for()
    note = store.note
    monkeypatch.setattr(store, "note", stall)
    assert run(lambda lease: lease.step("a", effect)).result == "a"


def test_T14_S13_intents_and_notes_of_threads_wait_for_each_other_and_all_end():
    """Each call finds its record held, whatever the others note meanwhile."""

    def work(lease):
        failures, ended = [], []

        def call(key):
            assert kept().expires_at is None
            return key

        def in_thread(number):
            try:
                for n in range(5):
                    lease.step(f"step-{number}-{n}", effect)
                    lease.external(f"call-{number}-{n}", call, uncertain="refuse")
                    lease.external(f"note-{number}-{n}", lambda key: key, uncertain="repeat")
                ended.append(number)
            except BaseException as error:
                failures.append(error)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=in_thread, args=[n], daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert (failures, sorted(ended)) == ([], [0, 1, 2, 3])
        raise Boom

    with pytest.raises(Boom):
        run(work)
    assert (kept().held, journal.read(kept().steps).uncertain) == (False, ())
    assert (len(noted()), len(effects())) == (60, 20)


def test_T14_T15_coroutines():
    async def work(lease, fails):
        async def call(name, key):
            await asyncio.sleep(0)
            return name

        steps = [lease.astep(f"s{n}", effect, f"s{n}") for n in range(3)]
        calls = [lease.aexternal(f"c{n}", partial(call, n), uncertain="repeat") for n in range(3)]
        results = await asyncio.gather(*steps, *calls)
        if fails:
            raise Boom
        return results

    with pytest.raises(Boom):
        arun(partial(work, fails=True))
    assert sorted(noted()) == ["c0", "c1", "c2", "s0", "s1", "s2"]
    assert arun(partial(work, fails=False)).result == ["s0", "s1", "s2", 0, 1, 2]
    assert sorted(effects()) == ["s0", "s1", "s2"]


# Crashes, in this process; real ones: tests/acceptance/processes/test_steps.py.

#: Where an attempt dies, what is noted then, and the effects of the steps.
CRASHES = {
    "P1-before": ("in_work", "before", [], []),
    "P1-between": ("in_work", "between", ["one"], ["one"]),
    "P2": ("in_work", "one", [], []),
    "P3-before_note": ("before_note", "", [], []),
    "P3-after_note": ("after_note", "", [], []),
    "P3-before_commit": ("before_commit", "", [], []),
    "P7": ("after_commit", "", ["one"], ["one"]),
    "P8": ("before_complete", "", ["one", "two"], ["one", "two"]),
}


@pytest.mark.parametrize(("point", "place", "names", "done"), CRASHES.values(), ids=CRASHES)
def test_P1_P2_P3_P7_P8_a_retry_after_the_lease_goes_on_and_each_step_is_done_once(
    point, place, names, done
):
    def work(lease, crash=lambda: None):
        if place == "before":
            crash()
        lease.step("one", lambda: (place == "one" and crash(), effect("one")) and 1)
        if place == "between":
            crash()
        return lease.step("two", effect, "two")

    with crash_at(point) as crash:
        run(partial(work, crash=crash))
    assert (kept().state, effects()) == (State.IN_PROGRESS, done)
    assert [*journal.read(kept().steps).results] == names
    with pytest.raises(InProgress):
        run(never)
    lapse()
    assert run(work).result == "two"
    assert effects() == ["one", "two"]


@pytest.mark.parametrize(
    ("point", "calls"), [("in_work", 2), ("before_note", 2), ("after_note", 1)]
)
def test_P2_P6_P7_a_call_is_made_again_under_its_key_unless_it_was_noted(point, calls):
    made = []

    def call(key, crash):
        made.append(key)
        crash()
        return len(made)

    def work(lease, crash=lambda: None):
        return lease.external("a", partial(call, crash=crash), uncertain="repeat")

    with crash_at(point) as crash:
        run(partial(work, crash=crash if point == "in_work" else lambda: None))
    lapse()
    assert run(work).result == calls
    assert (len(made), len(set(made))) == (calls, 1)


# TestCase, other databases, sessions.


@pytest.mark.django_db(transaction=False)
def test_R84_within_a_TestCase_steps_are_blocks_of_the_test():
    def breaks():
        effect()
        raise Boom

    def work(lease, fails):
        with pytest.raises(Boom):
            lease.step("a", breaks)
        lease.step("a", effect)
        if fails:
            raise Boom
        return lease.external("b", lambda key: 2, uncertain="repeat")

    with pytest.raises(Boom):
        run(partial(work, fails=True))
    assert (effects(), noted()) == (["a"], ["a"])
    assert run(lambda lease: lease.step("a", never)).result == "a"


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_work_on_another_alias_is_not_part_of_the_step():
    def work(lease):
        with pytest.raises(Boom):
            lease.step("a", elsewhere)
        with transaction.atomic(using="other"), pytest.raises(TransactionOpen):
            lease.step("a", never)
        return effects("other")

    def elsewhere():
        Effect.objects.using("other").create(name="stands")
        raise Boom

    assert run(work).result == ["stands"]


def test_T16_a_renewal_never_fails_a_note(monkeypatch):
    """A renewal while a step is open: of a lease that is renewable at all, its note stands."""

    def renew(lease):
        if lease.renewable and connection.vendor != "sqlite":  # whose renewal waits for the step
            thread = threading.Thread(target=renewed, args=[lease])
            thread.start()
            thread.join(PATIENCE)
        return effect()

    def renewed(lease):
        try:
            store_for().renew([lease], lease.request.lease)
        finally:
            connections.close_all()

    assert run(lambda lease: lease.step("a", renew, lease)).result == "a"


@pytest.mark.leg("postgres18")
def test_a_thread_at_another_level_fails_its_step_as_a_whole_and_may_run_it_again(caplog):
    """A renewal between the snapshot of a step and its note is a 40001: never a half."""

    def strict(lease):
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        effect("first")
        thread = threading.Thread(target=renewed, args=[lease])
        thread.start()
        thread.join(PATIENCE)

    def renewed(lease):
        try:
            store_for().renew([lease], lease.request.lease)
        finally:
            connections.close_all()

    def work(lease):
        for _ in range(2):
            with pytest.raises(StoreError) as refused:
                lease.step("a", strict, lease)
            assert isinstance(refused.value.__cause__, Error)
            assert effects() == []
        return lease.step("a", effect)

    assert run(work).result == "a"
    assert effects() == ["a"]
    told = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert len([text for text in told if "above READ COMMITTED" in text]) == 1


@pytest.mark.leg("postgres18")
def test_a_step_costs_one_statement_and_no_commit_and_a_call_one_or_two_writes(wire):
    def bare():
        with transaction.atomic():
            effect()

    def costs(function):
        """Round trips, and COMMITs that were sent as such."""
        function()  # a statement is prepared when it is sent for the second time
        wire.spoken.clear()
        function()
        return wire.round_trips, wire.sent.count(b"COMMIT")

    def work(lease):
        numbers = iter(range(9))

        def call(uncertain):
            lease.external(f"call {next(numbers)}", lambda key: 1, uncertain=uncertain)

        step = costs(lambda: lease.step(f"step {next(numbers)}", effect))
        calls = [costs(partial(call, uncertain)) for uncertain in ("repeat", "refuse", never)]
        return [costs(bare), step, *calls]

    (bare_trips, bare_commits), step, *calls = run(work).result
    assert step == [bare_trips + 1, bare_commits]
    assert calls == [[1, 0], [2, 0], [2, 0]]


# Answers that are lost.


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("arrives", [True, False])
def test_P9_the_answer_to_the_COMMIT_of_a_step_is_lost(wire, other, arrives):
    """The next claim reads whether it has arrived: once in either case."""

    def work(lease):
        connection.ensure_connection()
        (wire.cut_after if arrives else wire.cut_before)(b"COMMIT")
        with pytest.raises(StoreError, match="lost at the COMMIT"):
            lease.step("a", effect, "first")
        with pytest.raises(StoreError, match="Whether 'a' was noted is not known"):
            lease.step("a", never)
        raise Boom

    with pytest.raises(Boom):
        run(work)
    assert wire.fired.wait(PATIENCE)
    retry = never if arrives else partial(effect, "second")
    result = run(lambda lease: lease.step("a", retry)).result
    assert result == ("first" if arrives else "second")
    assert other(effects) == [result]


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("arrives", [True, False])
def test_P9_the_answer_to_the_note_of_a_call_is_lost_and_the_note_is_sent_again(wire, arrives):
    def work(lease):
        connection.ensure_connection()
        (wire.cut_after if arrives else wire.cut_before)(b"SET steps")
        lease.external("a", lambda key: 1, uncertain="repeat")
        raise Boom

    with pytest.raises(Boom):
        run(work)
    assert wire.fired.wait(PATIENCE)
    assert run(lambda lease: lease.external("a", never, uncertain="repeat")).result == 1


@pytest.mark.leg("postgres18")
def test_P12_the_connection_is_lost_at_the_note_of_a_step(wire, other):
    def work(lease):
        connection.ensure_connection()
        wire.cut_before(b"SET steps")
        with pytest.raises(StoreError):
            lease.step("a", effect, "first")
        raise Boom

    with pytest.raises(Boom):
        run(work)
    assert other(effects) == []
    assert run(lambda lease: lease.step("a", effect, "second")).result == "second"
    assert other(effects) == ["second"]


@pytest.mark.leg("postgres18", "postgres16")
def test_P12_the_server_is_gone_at_the_note_of_a_step(wire, other):
    """Django connects anew after the rollback: that it cannot does not hide what was raised."""

    def work(lease):
        connection.ensure_connection()
        wire.cut_before(b"SET steps")
        wire.refuse()
        with pytest.raises(StoreError) as lost:
            lease.step("a", effect, "first")
        assert lost.value.unreachable
        raise Boom

    with pytest.raises(Boom):
        run(work)
    wire.heal()
    assert other(effects) == []
    lapse()
    assert run(lambda lease: lease.step("a", effect, "second")).result == "second"
    assert other(effects) == ["second"]


@pytest.mark.leg("postgres18", "postgres16")
def test_T7_what_the_work_raises_passes_on_though_the_server_is_gone(wire, other):
    def fails():
        effect("first")
        connection.connection.close()
        wire.refuse()
        raise Boom

    with pytest.raises(Boom):
        run(lambda lease: lease.step("a", fails))
    wire.heal()
    assert other(effects) == []


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("uncertain", ["refuse", "ask"])
def test_P9_the_answer_to_an_intent_is_lost_and_no_call_is_made(wire, other, arrives, uncertain):
    """No server is there to send it to again: the journal decides whether others are to ask."""
    asked = []

    def ask(key):
        asked.append(key)
        raise NotDone

    answer = ask if uncertain == "ask" else "refuse"

    def work(lease):
        connection.ensure_connection()
        (wire.cut_after if arrives else wire.cut_before)(b"SET steps")
        wire.refuse()
        with pytest.raises(StoreError) as lost:
            lease.external("a", never, uncertain=answer)
        assert lost.value.unreachable
        raise Boom

    def retry(lease):
        return lease.external("a", lambda key: 1, uncertain=answer)

    with pytest.raises(Boom):
        run(work)
    wire.heal()
    assert other(kept).held == arrives
    lapse()
    if arrives and uncertain == "refuse":
        with pytest.raises(Uncertain):
            run(retry)
    else:
        assert run(retry).result == 1
    assert len(asked) == (arrives and uncertain == "ask")


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("arrives", [True, False])
def test_P9_the_answer_to_an_intent_is_lost_and_the_intent_is_sent_again(wire, arrives):
    def work(lease):
        connection.ensure_connection()
        (wire.cut_after if arrives else wire.cut_before)(b"SET steps")
        return lease.external("a", call, uncertain="refuse")

    def call(key):
        assert wire.fired.wait(PATIENCE)
        sent = journal.intent("a") * (1 + arrives)
        assert (kept().steps, kept().held) == (sent, True)
        return 1

    assert run(work).result == 1


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("uncertain", ["refuse", "ask"])
def test_P9_P12_the_server_is_gone_at_the_note_of_a_call(wire, other, arrives, uncertain):
    made = []
    answer = (lambda key: 2) if uncertain == "ask" else "refuse"

    def call(key):
        made.append(key)
        (wire.cut_after if arrives else wire.cut_before)(b"SET steps")
        wire.refuse()
        return 1

    def work(lease):
        with pytest.raises(StoreError) as lost:
            lease.external("a", call, uncertain=answer)
        assert lost.value.unreachable
        raise Boom

    def retry(lease):
        return lease.external("a", never, uncertain=answer)

    with pytest.raises(Boom):
        run(work)
    wire.heal()
    assert other(kept).held != arrives
    lapse()
    if uncertain == "refuse" and not arrives:
        with pytest.raises(Uncertain):
            run(retry)
    else:
        assert run(retry).result == (1 if arrives else 2)
    assert len(made) == 1


def test_P13_a_completion_that_cannot_be_written_leaves_the_steps(monkeypatch):
    def down(*args, **keywords):
        raise StoreError("down", unreachable=True)

    def work(lease):
        lease.step("a", effect)
        return "answer"

    with monkeypatch.context() as patched:
        patched.setattr(store_for(), "complete", down)
        outcome = run(work)
        assert (outcome.result, outcome.stored) == ("answer", False)
    lapse()
    assert run(work).result == "answer"
    assert effects() == ["a"]


def test_a_step_that_finds_no_row_raises_what_the_ORM_raises():
    def work(lease):
        with pytest.raises(ObjectDoesNotExist):
            lease.step("a", lambda: Effect.objects.select_for_update().get(name="none").pk)
        return 1

    assert run(work).result == 1
