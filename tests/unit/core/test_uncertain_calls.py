"""Calls that may have been made or not: their intents, and what follows (T12 of a memory store)."""

from __future__ import annotations

import asyncio
import pickle
import threading
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from datetime import timedelta
from functools import partial
from unittest.mock import Mock

import pytest
from asgiref.sync import sync_to_async

import django_idempotency as idempotency
from django_idempotency import (
    InProgress,
    LeaseLost,
    NotDone,
    ResultTooLarge,
    StoreError,
    Uncertain,
    journal,
    signals,
)
from django_idempotency.claims import Resolution
from django_idempotency.conf import engine_for, store_for
from django_idempotency.engine.ending import RollBack
from django_idempotency.records import State
from django_idempotency.testing import crash_at
from tests.unit.core.conftest import cancel, kept, levels, never, noted, run_in_loop
from tests.unit.core.steps import Boom, arun, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory")]

FAILED, HELD = (State.FAILED, False, []), (State.FAILED, True, ["charge"])


def charge(call, uncertain="refuse", name="charge"):
    """Return work that is one call."""
    return lambda lease: lease.external(name, call, uncertain=uncertain)


def coroutine(function):
    """Return a coroutine function that does the same."""

    async def call(key):
        return function(key)

    return call


def left(key="k"):
    """What an attempt has left: the state, whether it is held, and the uncertain calls."""
    record = kept(key)
    return record.state, record.held, [*journal.read(record.steps).uncertain]


def intents():
    return kept().steps.count(journal.intent("charge"))


class Notes:
    """The notes that the store gets, and the errors that it raises before or after some of them."""

    def __init__(self, memory, monkeypatch):
        self._note = memory.note
        self.fails = {}
        monkeypatch.setattr(memory, "note", self)

    def __call__(self, lease, entry, **how):
        kind = {1: "result", 2: "intent", 3: "withdrawal"}[entry[0]]
        arrives, error = self.fails.pop(kind, (True, None))
        if arrives:
            self._note(lease, entry, **how)
        if error is not None:
            raise error


@pytest.fixture
def notes(memory, monkeypatch):
    """``notes.fails["intent"] = False, error``: the store raises, and has noted nothing."""
    return Notes(memory, monkeypatch)


@pytest.fixture
def dies(memory, clock, monkeypatch):
    """Run work that raises Boom as a process that is killed: it ends nothing, its lease lapses."""

    def dies(work, **arguments):
        with monkeypatch.context() as patched:
            patched.setattr(memory, "fail", lambda *args, **kwargs: None)
            with pytest.raises(Boom):
                run(work, **arguments)
        assert kept().state is State.IN_PROGRESS
        clock.advance(61)

    return dies


@pytest.fixture(params=["died in the call", "the call raised", "the result was not noted"])
def made(request, dies, notes, calls):
    """The calls after a first attempt that has made one, and left it uncertain."""
    if request.param == "died in the call":
        dies(charge(calls("first", Boom())))
    elif request.param == "the call raised":
        with pytest.raises(TimeoutError):
            run(charge(calls("first", TimeoutError())))
    else:
        notes.fails["result"] = False, StoreError("down")
        with pytest.raises(StoreError, match="down"):
            run(charge(calls("first", "ch_1")))
    assert kept().held
    assert journal.read(kept().steps) == ({}, ("charge",))
    assert [name for name, _ in calls.made] == ["first"]
    return calls


def of(calls):
    return [name for name, _ in calls.made]


# The first attempt.


@pytest.mark.parametrize("uncertain", ["refuse", never], ids=["refuse", "function"])
def test_T12_S13_a_call_is_made_between_its_intent_and_its_note(uncertain, calls):
    seen = []

    def call(key):
        seen.append(left())
        return calls("charge", "ch_1")(key)

    def work(lease):
        seen.append(left())
        result = lease.external("charge", call, uncertain=uncertain)
        seen.append(left())
        return result

    assert run(work).result == "ch_1"
    live = State.IN_PROGRESS
    assert seen == [(live, False, []), (live, True, ["charge"]), (live, False, [])]
    assert (kept().state, kept().held, of(calls)) == (State.COMPLETED, False, ["charge"])


def test_T12_a_call_that_may_be_repeated_has_no_intent(notes):
    notes.fails["intent"] = False, AssertionError("noted")
    with pytest.raises(Boom):
        run(charge(Mock(side_effect=Boom), "repeat"))
    assert (left(), kept().steps) == (FAILED, None)


# What a retry does.


def test_T12_repeat_makes_the_call_again_under_its_key(made):
    assert run(charge(made("again", "ch_1"), "repeat")).result == "ch_1"
    assert of(made) == ["first", "again"]
    assert made.made[0][1] == made.made[1][1]
    assert kept().expires_at is not None


def test_T12_S13_refuse_makes_no_call_until_an_operator_decides(made, memory, clock):
    def work(lease):
        order = lease.step("order", lambda: 17)
        charged = lease.external("charge", made("again", "ch_1"), uncertain="refuse")
        return [order, charged, lease.step("paid", lambda: 1)]

    for _ in range(3):
        with pytest.raises(Uncertain, match="whether the call 'charge' was made: an att") as met:
            run(work)
        assert left() == HELD
        assert noted() == ["order"]
        clock.advance(timedelta(days=400))
        assert memory.sweep() == 0
    error, record = met.value, kept()
    assert isinstance(error, InProgress)
    assert (error.stale, error.step, error.record_id) == (True, "charge", record.record_id)
    assert of(made) == ["first"]

    decided = Resolution("resume", record.epoch, record.state, step="charge", not_done=True)
    assert memory.resolve(record.record_id, decided)
    assert run(work).result == [17, "ch_1", 1]
    assert made.made == [("first", error.key), ("again", error.key)]


def test_T12_the_result_of_a_function_is_that_of_the_call(made):
    work = charge(never, made("asked", "ch_1"))
    with pytest.raises(Boom):
        run(lambda lease: [work(lease), Mock(side_effect=Boom)()])
    assert (left(), noted()) == (FAILED, ["charge"])  # it is certain, and held no longer
    assert run(charge(never, never)).result == "ch_1"
    assert of(made) == ["first", "asked"]
    assert made.made[0][1] == made.made[1][1]


def test_T12_a_call_that_was_not_made_is_made_after_another_intent(made):
    def call(key):
        assert intents() == 2
        return made("again", "ch_1")(key)

    assert run(charge(call, made("asked", NotDone()))).result == "ch_1"
    assert of(made) == ["first", "asked", "again"]
    assert len({key for _, key in made.made}) == 1


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (Boom("unreachable"), Boom, "unreachable"),
        (object(), TypeError, "The call was made, and counts as uncertain"),
        ("x" * 999, ResultTooLarge, "The call was made, and counts as uncertain"),
        (iter([1]), TypeError, "neither awaited nor iterated over"),
    ],
    ids=["raises", "not JSON", "too large", "lazy"],
)
def test_T12_a_function_that_gives_no_result_leaves_the_call_uncertain(made, answer, error, told):
    for _ in range(2):
        with pytest.raises(error, match=told):
            run(charge(never, made("asked", answer)), max_steps_bytes=500)
        assert left() == HELD
    assert of(made) == ["first", "asked", "asked"]
    assert intents() == 1
    assert run(charge(never, made("asked", "ch_1"))).result == "ch_1"


def test_T12_a_function_is_not_asked_whether_a_first_call_was_made(calls):
    assert run(charge(calls("charge", 1), never)).result == 1


@pytest.mark.parametrize("left_over", ["open", "answered"])
def test_T12_what_a_late_owner_has_left_is_asked_of_the_next(clock, calls, left_over):
    """It stalls in its call and is taken over: its note is refused (P10)."""

    def stall(key):
        clock.advance(61)
        if left_over == "open":
            with pytest.raises(Uncertain):
                Context().run(run, charge(never, "refuse"))
        else:
            work = charge(calls("second", "ch_2"), calls("asked", NotDone()))
            assert Context().run(run, work).result == "ch_2"
        return "ch_1"

    with pytest.raises(LeaseLost):
        run(charge(stall), renew=False)
    if left_over == "open":
        assert left() == HELD
        with pytest.raises(Uncertain):
            run(charge(never))
    else:
        assert run(never).result == "ch_2"


#: Where an attempt dies, how often it has made the call, and what is known of that.
DEATHS = {
    "P4": ("before_intent", 0, "not made"),
    "P5": ("after_intent", 0, "uncertain"),
    "P2": ("in_work", 1, "uncertain"),
    "P6": ("before_note", 1, "uncertain"),
    "P7": ("after_note", 1, "noted"),
    "P8": ("before_complete", 1, "noted"),
}


@pytest.mark.parametrize("uncertain", ["refuse", "function"])
@pytest.mark.parametrize(("point", "times", "known"), DEATHS.values(), ids=DEATHS)
def test_P2_P4_to_P8_a_call_is_uncertain_from_its_intent_to_its_note(
    point, times, known, uncertain, clock, calls
):
    def call(key, crash=lambda: None):
        calls.made.append(("charge", key))
        crash()
        return "ch_1"

    asks = "refuse" if uncertain == "refuse" else calls("asked", "ch_1")
    with crash_at(point) as crash:
        run(charge(partial(call, crash=crash) if point == "in_work" else call, asks))
    assert of(calls) == ["charge"] * times
    clock.advance(61)
    if (known, uncertain) == ("uncertain", "refuse"):
        with pytest.raises(Uncertain):
            run(charge(never, asks))
        return
    assert run(charge(call, asks)).result == "ch_1"
    last = {"not made": ["charge"], "uncertain": ["asked"], "noted": []}[known]
    assert of(calls) == ["charge"] * times + last


# What the call raises.


def test_T12_a_call_that_says_that_it_was_not_made_is_taken_back(calls):
    def work(lease):
        with pytest.raises(NotDone, match="refused"):
            lease.external("charge", calls("charge", NotDone("refused")), uncertain="refuse")
        assert left() == (State.IN_PROGRESS, False, [])
        charge(calls("charge", NotDone("refused")))(lease)

    for _ in range(2):
        with pytest.raises(NotDone, match="refused"):
            run(work)
        assert left() == FAILED
    assert run(charge(calls("charge", 1), never)).result == 1


@pytest.mark.parametrize("uncertain", ["refuse", "function"])
def test_T11_T12_only_calls_that_were_made_keep_the_key(uncertain, calls):
    """A withdrawn intent leaves nothing that was executed."""

    def work(lease):
        asks = calls("asked", NotDone()) if uncertain == "function" else uncertain
        with pytest.raises(NotDone):
            lease.external("charge", calls("charge", NotDone()), uncertain=asks)
        raise RollBack("release", "refused")

    assert run(work).result == "refused"
    assert kept().state is State.RELEASED


def test_T11_S13_what_would_be_released_after_an_intent_is_failed_and_held():
    def work(lease):
        with pytest.raises(TimeoutError):
            charge(Mock(side_effect=TimeoutError))(lease)
        raise RollBack("release", "refused")

    assert run(work).result == "refused"
    assert left() == HELD


@pytest.mark.parametrize("arrives", [False, True])
def test_T12_P9_a_withdrawal_that_fails_leaves_the_call_uncertain(notes, arrives):
    def work(lease):
        with pytest.raises(StoreError, match="down") as met:
            lease.external("charge", Mock(side_effect=NotDone), uncertain="refuse")
        assert met.value.record_id == lease.record_id
        with pytest.raises(StoreError, match="not known"):
            lease.external("charge", never, uncertain="refuse")
        raise met.value

    notes.fails["withdrawal"] = arrives, StoreError("down")
    with pytest.raises(StoreError, match="down"):
        run(work)
    assert left() == (State.FAILED, True, [] if arrives else ["charge"])
    if arrives:  # the journal decides, and the claim has not ended the hold
        assert run(charge(lambda key: 1)).result == 1
    else:
        with pytest.raises(Uncertain):
            run(charge(never))


def test_T12_a_withdrawal_that_is_refused_ends_the_attempt(clock):
    def call(key):
        clock.advance(61)
        Context().run(run, lambda lease: lease.step("other", lambda: 1))
        raise NotDone

    def work(lease):
        with pytest.raises(LeaseLost):
            lease.external("charge", call, uncertain="refuse")
        assert lease.lost
        with pytest.raises(LeaseLost):
            lease.external("charge", never, uncertain="refuse")
        raise LeaseLost

    with pytest.raises(LeaseLost):
        run(work, renew=False)
    assert kept().state is State.COMPLETED


def test_T12_NotDone_withdraws_no_intent_under_repeat(dies, notes):
    notes.fails["withdrawal"] = False, AssertionError("noted")
    work = charge(Mock(side_effect=NotDone("refused")), "repeat")
    with pytest.raises(NotDone, match="refused"):
        run(work)
    assert (left(), kept().steps) == (FAILED, None)
    dies(charge(Mock(side_effect=Boom)))  # of an earlier call it says nothing
    with pytest.raises(NotDone, match="refused"):
        run(work)
    assert left() == HELD


def test_T12_a_name_that_raised_may_be_asked_for_again_in_its_attempt(calls):
    """It is as in another attempt: what raised counts as uncertain."""

    def work(lease):
        for name in ("refuse", "repeat", "function"):
            with pytest.raises(TimeoutError):
                lease.external(name, calls("first", TimeoutError()), uncertain="refuse")
        for _ in range(2):
            with pytest.raises(Uncertain):
                lease.external("refuse", never, uncertain="refuse")
        again = lease.external("repeat", calls("again", 1), uncertain="repeat")
        return [again, lease.external("function", never, uncertain=calls("asked", 2))]

    assert run(work).result == [1, 2]
    assert of(calls) == ["first"] * 3 + ["again", "asked"]


# What the code of a retry says now.


def test_T12_each_deployment_may_answer_anew(dies, calls):
    """Repeat, which is interrupted without an intent, then refuse, repeat, a function, refuse."""
    dies(charge(calls("repeat", Boom()), "repeat"))
    dies(charge(calls("refuse", Boom()), "refuse"))  # of a repeat it knows nothing
    with pytest.raises(Uncertain):
        run(charge(never, "refuse"))
    with pytest.raises(Boom):
        run(charge(calls("repeat", Boom()), "repeat"))
    assert left() == HELD
    with pytest.raises(Boom):
        run(charge(never, calls("asked", Boom())))
    with pytest.raises(Uncertain):
        run(charge(never, "refuse"))
    assert of(calls) == ["repeat", "refuse", "repeat", "asked"]
    assert run(charge(calls("repeat", 1), "repeat")).result == 1
    assert left() == (State.COMPLETED, False, [])


def test_T12_a_call_that_has_become_a_step_is_certain_once_that_is_noted(dies):
    dies(charge(Mock(side_effect=Boom)))
    with pytest.raises(Boom):
        run(lambda lease: [lease.step("charge", lambda: 1), Mock(side_effect=Boom)()])
    assert left() == FAILED


# Intents and results that cannot be noted.


@pytest.mark.parametrize("uncertain", ["refuse", "function"])
def test_T12_P10_no_call_is_made_after_an_intent_that_was_refused(dies, clock, calls, uncertain):
    """Another attempt has taken over while this one asked, or came to its call."""
    second = charge(calls("second", "ch_2"), calls("asked", NotDone()))

    def take_over(*key):
        clock.advance(61)
        assert Context().run(run, second).result == "ch_2"
        raise NotDone

    def work(lease):
        if uncertain == "refuse":
            with pytest.raises(NotDone):
                take_over()
        with pytest.raises(LeaseLost):
            charge(never, take_over if uncertain == "function" else "refuse")(lease)
        assert lease.lost
        raise Boom

    if uncertain == "function":
        dies(charge(calls("first", Boom())))
    with pytest.raises(Boom):
        run(work, renew=False)
    assert run(never).result == "ch_2"


@pytest.mark.parametrize("arrives", [False, True])
def test_T12_S13_no_call_is_made_after_an_intent_whose_note_failed(notes, arrives, calls):
    def work(lease):
        with pytest.raises(StoreError, match="no answer") as met:
            lease.external("charge", never, uncertain="refuse")
        assert met.value.record_id == lease.record_id
        for uncertain in ("refuse", "repeat", never):
            with pytest.raises(StoreError, match="Whether 'charge' was noted is not known"):
                lease.external("charge", never, uncertain=uncertain)
        raise RollBack("release", "refused")

    notes.fails["intent"] = arrives, StoreError("no answer", unreachable=True)
    assert run(work).result == "refused"
    assert left() == (State.FAILED, True, ["charge"] if arrives else [])
    if arrives:  # P5: uncertain, though nothing was done
        with pytest.raises(Uncertain):
            run(charge(never))
    assert run(charge(calls("charge", 1), calls("asked", NotDone()))).result == 1
    assert of(calls) == ["asked"] * arrives + ["charge"]
    assert kept().expires_at is not None


def test_T12_P9_a_result_whose_answer_is_lost_is_decided_by_the_next_claim(notes, calls):
    def work(lease):
        with pytest.raises(StoreError, match="no answer"):
            lease.external("charge", calls("charge", "ch_1"), uncertain="refuse")
        with pytest.raises(StoreError, match="not known"):
            lease.external("charge", never, uncertain="refuse")
        raise Boom

    notes.fails["result"] = True, StoreError("no answer", unreachable=True)
    with pytest.raises(Boom):
        run(work)
    assert left() == (State.FAILED, True, [])
    assert run(charge(never)).result == "ch_1"


def test_T8_intents_count_and_one_that_does_not_fit_leaves_nothing():
    def work(lease):
        with pytest.raises(ResultTooLarge, match=r"With 'charge' .* have 13 bytes.* allows 12"):
            lease.external("charge", never, uncertain="refuse")
        raise Boom

    with pytest.raises(Boom):
        run(work, max_steps_bytes=12)
    assert (left(), kept().steps) == (FAILED, None)


def test_T8_an_intent_that_does_not_fit_leaves_an_earlier_one(made):
    with pytest.raises(ResultTooLarge):
        run(charge(never, made("asked", NotDone())), max_steps_bytes=13)
    assert left() == HELD


def test_T8_a_result_that_does_not_fit_leaves_its_call_uncertain():
    for result in ("x" * 39, object()):
        with pytest.raises(
            (ResultTooLarge, TypeError), match="The call was made, and counts as uncertain"
        ):
            run(charge(lambda key, result=result: result), str(result), max_steps_bytes=40)
        assert left(str(result)) == HELD


def test_T8_there_is_always_room_for_what_has_become_of_a_call():
    with pytest.raises(NotDone):
        run(charge(Mock(side_effect=NotDone)), max_steps_bytes=13)
    assert left() == FAILED

    def work(lease):
        charge(lambda key: "0123456789")(lease)
        raise Boom

    with pytest.raises(Boom):
        run(work, "whole", max_steps_bytes=20)
    assert left("whole") == FAILED
    assert [*journal.read(kept("whole").steps).results] == ["charge"]


def test_T8_no_call_is_made_that_has_no_room():
    def work(lease):
        lease.external("first", lambda key: "0123456789", uncertain="repeat")
        for uncertain in ("repeat", "refuse", never):
            with pytest.raises(ResultTooLarge, match=r"allows 20\. Raise it: the next"):
                lease.external("second", never, uncertain=uncertain)
        with pytest.raises(ResultTooLarge):
            lease.step("third", never)
        raise Boom

    with pytest.raises(Boom):
        run(work, max_steps_bytes=20)
    assert left() == FAILED


def test_T8_no_awaited_call_is_made_that_has_no_room():
    async def work(lease):
        await lease.aexternal("first", coroutine(lambda key: "0123456789"), uncertain="repeat")
        for uncertain in ("repeat", "refuse", coroutine(never)):
            with pytest.raises(ResultTooLarge, match="allows 20"):
                await lease.aexternal("second", coroutine(never), uncertain=uncertain)
        return 1

    assert arun(work, max_steps_bytes=20).result == 1


def test_T12_an_error_is_raised_again_by_other_calls(made):
    refused = made("refused", NotDone())
    for key in ("k", "another", "another"):
        with pytest.raises(NotDone):
            run(charge(refused, refused), key)
    assert left("another") == FAILED


@pytest.mark.parametrize("word", ["step", "repeat", "refuse", "none", "separate"])
@pytest.mark.parametrize("where", ["call", "question"])
@pytest.mark.parametrize("is_async", [False, True])
def test_T12_a_call_inside_of_another_says_nothing_of_that(calls, where, is_async, word):
    def refused(key=None):
        raise NotDone

    def inner(lease):
        if word == "step":
            return lease.step("label", refused)
        if word in ("none", "separate"):
            refused()
        return lease.external("label", refused, uncertain=word)

    def another(key):
        calls("outer", 1)(key)
        mode = "separate" if word == "separate" else "steps"
        idempotency.run(inner, key="inner", scope="s", transaction=mode)

    call, question = (another, "refuse") if where == "call" else (never, another)
    if where == "question":
        with pytest.raises(Boom):
            run(charge(calls("first", Boom())))

    def go():
        if not is_async:
            return run(charge(call, question))
        asked = question if question == "refuse" else threaded(question)

        async def work(lease):
            return await lease.aexternal("charge", threaded(call), uncertain=asked)

        return arun(work)

    with pytest.raises(NotDone):
        go()
    assert left() == HELD


def threaded(function):
    """Return a coroutine function that calls this one where a database may be asked."""
    return sync_to_async(function)


# How a hold ends.


def test_S18_a_decision_is_about_the_call_that_the_operator_saw(memory, calls):
    seen = []

    def first(key):
        seen.append(kept())  # by an operator, who asks the bank now
        raise NotDone

    def again(lease):
        for call in (first, calls("second", Boom())):
            with suppress(NotDone):
                lease.external("charge", call, uncertain="refuse")

    with pytest.raises(Boom):
        run(again)
    assert left() == HELD
    [record] = seen
    decided = Resolution(
        "resume",
        record.epoch,
        kept().state,
        step="charge",
        not_done=True,
        noted=len(record.steps),
    )
    assert not memory.resolve(record.record_id, decided)
    assert memory.resolve(record.record_id, replace(decided, noted=len(kept().steps)))


def test_S13_what_ends_a_record_ends_its_hold(made, memory, clock):
    record = kept()
    assert memory.resolve(record.record_id, Resolution("release", record.epoch, record.state))
    assert (kept().state, kept().held) == (State.RELEASED, False)
    clock.advance(timedelta(days=400))
    assert memory.sweep() == 1


def test_S13_notes_hold_a_record_as_long_as_a_call_is_uncertain(made):
    def work(lease):
        assert kept().held
        lease.step("order", lambda: 1)
        lease.external("other", made("other"), uncertain="refuse")
        assert kept().held
        lease.external("charge", never, uncertain=made("asked", "ch_1"))
        assert not kept().held
        lease.external("mail", made("mail", Boom()), uncertain="refuse")

    with pytest.raises(Boom):
        run(work)
    assert left() == (State.FAILED, True, ["mail"])


def test_T10_a_completion_warns_of_the_calls_that_stay_uncertain(made, caplog):
    def work(lease):
        for _ in range(2):
            with pytest.raises(Uncertain):
                lease.external("charge", never, uncertain="refuse")
        with pytest.raises(TimeoutError):
            lease.external("bill", made("bill", TimeoutError("card 4242")), uncertain="refuse")
        return "swallowed"

    caplog.clear()
    assert run(work).result == "swallowed"
    assert (kept().state, kept().held, kept().steps) == (State.COMPLETED, False, None)
    assert levels(caplog) == ["ERROR", "ERROR", "WARNING"]
    assert "nobody knows whether these calls were made: 'bill', 'charge'. Its" in caplog.text
    assert "4242" not in caplog.text


def test_T10_a_completion_warns_of_an_uncertain_call_that_was_renamed(made, caplog):
    caplog.clear()
    run(charge(made("renamed", 1), name="renamed"))
    assert levels(caplog) == ["WARNING"]
    assert "nobody knows whether these calls were made: 'charge'. Its" in caplog.text


# What is told.


def test_each_refusal_is_an_error_of_the_log_and_the_attempt_has_failed(caplog):
    told, ends = [], (signals.failed, signals.conflicted, signals.store_failed)

    def receive(outcome, error, **facts):
        told.append((outcome, error))

    def pay(call):
        run(charge(call), payload={"card": "4242"})

    with pytest.raises(TimeoutError):
        pay(Mock(side_effect=TimeoutError("card 4242")))
    for signal in ends:
        signal.connect(receive, weak=False, dispatch_uid=1)
    try:
        for _ in range(2):
            with pytest.raises(Uncertain):
                pay(never)
    finally:
        for signal in ends:
            signal.disconnect(dispatch_uid=1)
    assert told == [("failed", "Uncertain")] * 2
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [
        (
            "ERROR",
            f"Record {str(kept().record_id)[:12]}: nobody knows whether the call 'charge' was "
            f"made. An operator has to decide: see idempotency_resume.",
        )
    ] * 2


def test_Uncertain_survives_pickling(made):
    with pytest.raises(Uncertain) as met:
        run(charge(never))
    error = pickle.loads(pickle.dumps(met.value))
    assert type(error) is Uncertain
    assert vars(error) == vars(met.value)
    assert str(error) == str(met.value)
    assert Uncertain().stale


def test_another_call_of_the_work_has_intents_of_its_own(dies):
    """An uncertain call of an inner operation is not one of the outer operation."""
    dies(charge(Mock(side_effect=Boom)))
    with pytest.raises(Uncertain) as met:
        run(lambda lease: run(charge(never)).result, key="outer")
    assert met.value.record_id == kept().record_id != kept("outer").record_id
    assert left("outer") == FAILED


def test_T18_a_result_is_sealed_behind_its_intent():
    keys = ["0" * 43]

    def work(lease):
        lease.external("charge", lambda key: "secret", uncertain="refuse")
        raise Boom

    with pytest.raises(Boom):
        run(work, encryption_keys=keys)
    assert (noted(), intents()) == (["charge"], 1)
    assert b"secret" not in kept().steps
    assert run(charge(never, never), encryption_keys=keys).result == "secret"


# What may be given.


@pytest.mark.parametrize("word", ["external", "aexternal"])
def test_T12_the_arguments_are_looked_at_before_anything_is_noted(word):
    async def acall(key):
        pytest.fail("ran")

    wrong = [
        (never, lambda: 1, r"uncertain= of 'charge' must take \(key\), and <lambda>\(\) does not"),
        (lambda: 1, "refuse", r"The call 'charge' must take \(key\)"),
    ]
    if word == "external":
        wrong += [(acall, "refuse", "coroutine function"), (never, acall, "coroutine function")]

    def work(lease):
        for call, uncertain, told in wrong:
            with pytest.raises(TypeError, match=told):
                lease.external("charge", call, uncertain=uncertain)
        raise Boom

    async def awork(lease):
        for call, uncertain, told in wrong:
            with pytest.raises(TypeError, match=told):
                await lease.aexternal("charge", call, uncertain=uncertain)
        raise Boom

    with pytest.raises(Boom):
        run(work) if word == "external" else arun(awork)
    assert kept().steps is None


def test_T12_what_a_coroutine_gives_is_awaited(made):
    async def work(lease):
        with pytest.raises(TypeError, match="'charge' returned no awaitable"):
            await lease.aexternal("charge", never, uncertain=lambda key: "ch_1")
        with pytest.raises(TypeError, match="'other' returned no awaitable"):
            await lease.aexternal("other", lambda key: "done", uncertain="refuse")
        raise Boom

    with pytest.raises(Boom):
        arun(work)
    assert left() == (State.FAILED, True, ["charge", "other"])


# Coroutines and threads.


def acharge(call, uncertain="refuse"):
    """See `charge`: the functions are coroutine functions."""
    if callable(uncertain):
        uncertain = coroutine(uncertain)

    async def work(lease):
        return await lease.aexternal("charge", coroutine(call), uncertain=uncertain)

    return work


def test_T12_a_coroutine_is_refused_and_asks_as_a_function_does(made):
    for _ in range(2):
        with pytest.raises(Uncertain):
            arun(acharge(never))
        assert left() == HELD
    with pytest.raises(Boom):
        arun(acharge(never, made("asked", Boom())))
    with pytest.raises(NotDone):
        arun(acharge(made("not made", NotDone()), made("asked", NotDone())))
    assert left() == FAILED
    with pytest.raises(TimeoutError):
        arun(acharge(made("made", TimeoutError()), never))
    assert left() == HELD
    assert arun(acharge(never, made("asked", "ch_1"))).result == "ch_1"
    assert of(made) == ["first", "asked", "asked", "not made", "made", "asked"]


def test_T12_a_coroutine_makes_a_call_that_was_not_made(made):
    assert arun(acharge(made("again", "ch_1"), made("asked", NotDone()))).result == "ch_1"
    assert of(made) == ["first", "asked", "again"]


def test_T12_a_coroutine_makes_no_call_after_an_intent_that_was_refused(notes):
    notes.fails["intent"] = False, LeaseLost()
    with pytest.raises(LeaseLost):
        arun(acharge(never))


def test_T14_an_uncertain_call_takes_no_other_along(made):
    async def work(lease):
        async def call(name, key):
            return name

        names = ["charge", "a", "b"]
        calls = [lease.aexternal(n, partial(call, n), uncertain="refuse") for n in names]
        told = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(told[0], Uncertain)
        raise Boom

    with pytest.raises(Boom):
        arun(work)
    assert left() == HELD
    assert sorted(noted()) == ["a", "b"]


@pytest.mark.parametrize("way", ["external", "external on the loop", "aexternal"])
def test_T14_S13_an_intent_waits_for_a_note_that_would_end_its_hold(memory, monkeypatch, way):
    """The note of a step, in another thread, was sent before the intent, and arrives after it."""
    note, on_its_way, intended = memory.note, threading.Event(), threading.Event()

    def slow(lease, entry, *, held, **how):
        if not held:
            on_its_way.set()
            intended.wait(0.3)  # the intent comes now, unless it waits
        note(lease, entry, held=held, **how)
        if held:
            intended.set()

    def order(lease):
        thread = threading.Thread(target=lease.step, args=["order", lambda: 17])
        thread.start()
        assert on_its_way.wait(30)

    def work(lease):
        order(lease)
        lease.external("charge", call, uncertain="refuse")

    async def awork(lease):
        order(lease)
        if way == "aexternal":
            await lease.aexternal("charge", coroutine(call), uncertain="refuse")
        else:
            lease.external("charge", call, uncertain="refuse")

    def call(key):
        assert noted() == ["order"]
        assert left() == (State.IN_PROGRESS, True, ["charge"])
        raise Boom

    monkeypatch.setattr(memory, "note", slow)
    with pytest.raises(Boom):
        run(work) if way == "external" else arun(awork)
    assert left() == HELD


def test_T14_an_intent_waits_for_no_note_that_has_failed(notes):
    def work(lease):
        notes.fails["result"] = False, KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            lease.step("interrupted", lambda: 17)
        with pytest.raises(ResultTooLarge):
            lease.step("too large", lambda: "x" * 490)
        return lease.external("charge", lambda key: "ch_1", uncertain="refuse")

    assert run(work, max_steps_bytes=500).result == "ch_1"


#: What a call does in the end, and what that leaves: its note, and whether the record is held.
ENDS = {None: (["charge"], False), Boom: ([], True), NotDone: ([], False)}


@pytest.mark.parametrize("uncertain", ["refuse", never], ids=["refuse", "function"])
@pytest.mark.parametrize("end", ENDS, ids=["returns", "raises", "was not made"])
def test_T15_a_cancellation_waits_for_a_call_that_may_not_be_repeated(uncertain, end):
    ended = []

    async def main():
        entered, leave = asyncio.Event(), asyncio.Event()

        async def call(key):
            entered.set()
            await leave.wait()
            if end is not None:
                raise end

        async def work(lease):
            try:
                await lease.aexternal("charge", call, uncertain=uncertain)
            finally:
                ended.append((noted(), kept().held))
            pytest.fail("went on")

        await cancel(work, entered.wait(), leave)

    run_in_loop(main)
    assert ended == [ENDS[end]]
    assert (kept().state, noted(), kept().held) == (State.FAILED, *ENDS[end])


def test_T15_a_call_that_was_cancelled_may_be_asked_for_its_result():
    """After a time-out, say."""

    async def work(lease):
        entered, leave = asyncio.Event(), asyncio.Event()

        async def call(key):
            entered.set()
            await leave.wait()
            return "ch_1"

        task = asyncio.ensure_future(lease.aexternal("charge", call, uncertain="refuse"))
        await entered.wait()
        task.cancel()
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await lease.aexternal("charge", never, uncertain="refuse")

    assert arun(work).result == "ch_1"


# The lease.


def test_T16_an_intent_extends_the_lease_and_begins_the_time_of_a_renewal_anew(
    memory, clock, monkeypatch
):
    added = []
    renewer = Mock(add=lambda store, lease, **keywords: added.append(lease))
    monkeypatch.setattr(engine_for(), "renewer", renewer)

    def lease_left():
        record = store_for().get(kept().record_id)
        return (record.lease_until - record.now).total_seconds()

    def work(lease):
        began = lease.steps.notes.noted_at

        def call(key):
            assert (len(added), lease_left()) == (2, 20)
            assert lease.steps.notes.noted_at > began
            clock.advance(5)
            raise NotDone

        clock.advance(3)
        with pytest.raises(NotDone):
            lease.external("charge", call, uncertain="refuse")
        assert (len(added), lease_left()) == (3, 20)  # so does its withdrawal
        return 1

    assert run(work, lease=20).result == 1
