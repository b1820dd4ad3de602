"""One terminal signal for each attempt, of the same meaning as its line in the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from dataclasses import replace
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

import django_idempotency as idempotency
from django_idempotency import LeaseLost, StoreError, observers, signals
from django_idempotency.codecs import JSONCodec, pack
from django_idempotency.conf import store_for
from django_idempotency.engine import Engine
from django_idempotency.logs import SIGNALS
from django_idempotency.stores.memory import MemoryStore
from tests import claims
from tests.app.models import Effect
from tests.unit.core.conftest import begin, callers, fail, run

FACTS = {"signal", "sender", "alias", "operation", "outcome", "record_id", "duration", "error"}


@pytest.fixture
def heard(caplog):
    """`heard()`: the names of the terminal signals since the last call, and the log's words."""
    caplog.set_level(logging.INFO, logger="django_idempotency")
    received = []

    def receive(**facts):
        received.append(facts)

    def take():
        words = [line.outcome for line in caplog.records if hasattr(line, "outcome")]
        found = [name for it in received for name, signal in EVERY if signal is it["signal"]]
        take.last = list(received)
        caplog.clear(), received.clear()
        return found, words

    EVERY = [("claimed", signals.claimed), *signals.TERMINAL.items()]
    for _, signal in EVERY:
        signal.connect(receive)
    yield take
    for _, signal in EVERY:
        signal.disconnect(receive)


def done(lease):
    return "done"


def unstorable(lease):
    return object()


def never_completed(call):
    with begin("released"):
        pass


def busy(call):
    with begin("busy"):
        call(done, key="busy")


def superseded(call, clock):
    def stalled(lease):
        clock.advance(61)
        run(done, "stalled")

    call(stalled, key="stalled")


def left_stale(call, clock):
    with begin("stale", lease=1) as attempt:
        clock.advance(2)
        with contextlib.suppress(idempotency.InProgress):
            call(done, key="stale", on_stale="refuse")
        attempt.complete()


def broken(call, name):
    store = store_for()
    setattr(store, name, Mock(side_effect=StoreError("no answer")))
    try:
        call(done, key=f"no {name}")
    finally:
        delattr(store, name)


#: What happens, the signals that tell of it, and the words of the log.
ENDS = [
    (lambda call, clock: call(done), ["claimed", "completed"], ["completed"]),
    (lambda call, clock: call(done), ["replayed"], ["replayed"]),
    (lambda call, clock: call(done, payload=2), ["mismatched"], ["mismatch"]),
    (lambda call, clock: call(fail, key="f"), ["claimed", "failed"], ["failed"]),
    (lambda call, clock: never_completed(call), ["claimed", "released"], ["released"]),
    (
        lambda call, clock: busy(call),
        ["claimed", "conflicted", "failed"],
        ["in progress", "failed"],
    ),
    (left_stale, ["claimed", "conflicted", "completed"], ["stale", "completed"]),
    (lambda call, clock: call(unstorable, key="u"), ["claimed", "completed"], ["completed"]),
    (lambda call, clock: call(done, key="u"), ["conflicted"], ["result unavailable"]),
    (
        superseded,
        ["claimed", "claimed", "completed", "lease_lost"],
        ["taken over", "completed", "lease lost"],
    ),
    (lambda call, clock: broken(call, "claim"), ["store_failed"], ["store unavailable"]),
    (
        lambda call, clock: broken(call, "complete"),
        ["claimed", "store_failed"],
        ["store unavailable"],
    ),
]


@callers([("run", "memory"), ("arun", "memory")])
def test_each_end_is_one_signal_and_one_line(call, clock, heard):
    for happens, names, words in ENDS:
        with contextlib.suppress(idempotency.IdempotencyError, ValueError):
            happens(call, clock)
        assert heard() == (names, words)
        for facts in heard.last:
            assert facts.keys() - {"takeover", "steps"} == FACTS
            assert (facts["sender"], facts["alias"]) == (MemoryStore, "default")
            assert isinstance(facts["record_id"], uuid.UUID)
            assert facts["duration"] >= 0
    assert {*signals.TERMINAL.values()} == {*SIGNALS.values()}


@callers([("run", "single"), ("run", "memory"), ("aattempt", "joined")])
def test_completed_waits_for_the_callers_commit_and_comes_never_after_its_rollback(call, heard):
    def outer(lease):
        run(done, "inner", transaction=None)
        assert heard()[0][-1] == "claimed"
        return "outer"

    if call.joins:
        call(outer)
        assert heard() == (["completed"] * 2, ["completed"] * 2)
    for key in ("commits", "rolls back"):
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            run(done, key, transaction=None)
            assert heard() == (["claimed"], [])
            if key == "rolls back":
                raise ZeroDivisionError
        assert heard() == ((["completed"], ["completed"]) if key == "commits" else ([], []))


@pytest.mark.django_db(transaction=True)
def test_a_completion_that_fails_after_the_callers_commit_has_its_signal(memory, heard):
    for error, name, word in (
        (LeaseLost(), "lease_lost", "lease lost"),
        (LeaseLost(gone=True), "store_failed", "store unavailable"),
        (StoreError(), "store_failed", "store unavailable"),
    ):
        memory.complete = Mock(side_effect=error)
        with transaction.atomic():
            run(done, repr(error))
        assert heard() == (["claimed", name], [word])
        assert heard.last[-1]["error"] == type(error).__name__


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("commits", [True, False])
def test_a_coroutine_that_is_cancelled_at_its_end_waits_for_the_callers_commit_too(
    memory, heard, commits
):
    async def call():
        async with begin() as attempt:
            attempt.complete("done")
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)

    async def main():
        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(call())

    with transaction.atomic():
        async_to_sync(main)()
        assert heard() == (["claimed"], [])
        transaction.set_rollback(not commits)
    assert heard() == ((["completed"], ["completed"]) if commits else ([], []))


@pytest.mark.parametrize("checks_replay", [True, False])
def test_an_error_after_transact_item_is_told_as_what_that_has_completed(
    clock, heard, checks_replay
):
    """The answer is what was committed, also where the error has one that would be kept."""
    store = MemoryStore(clock=clock)

    def complete(lease, result, *, retention):
        committed = pack(JSONCodec(), "paid", max_bytes=100)
        expires_at = MemoryStore.complete(store, lease, committed, retention=retention)
        lease.completed_before = claims.found(store)
        return expires_at

    store.complete = complete
    operation = replace(claims.operation(), checks_replay=checks_replay)
    assert Engine(store).run(operation, fail, lambda error: "sorry").result == "paid"
    assert heard() == (["claimed", "completed"], ["completed"])


@pytest.mark.django_db(transaction=True)
def test_a_block_that_outlives_the_callers_transaction_is_told_of_once(memory, heard):
    block = begin()
    with transaction.atomic():
        attempt = block.__enter__()
    attempt.complete("late")
    block.__exit__(None, None, None)
    assert heard() == (["claimed", "completed"], ["completed"])


@callers([("run", "joined"), ("run", "single"), ("arun", "separate"), ("arun", "memory")])
def test_a_receiver_that_raises_changes_nothing_and_all_of_them_may_query(
    call, caplog, monkeypatch
):
    monkeypatch.setattr(observers, "_seen", {})
    seen = []

    def receive(**facts):
        seen.append(Effect.objects.count())
        raise RuntimeError("of a receiver")

    async def areceive(**facts):
        seen.append("loop")

    for signal in (signals.claimed, signals.completed):
        signal.connect(receive)
    signals.completed.connect(areceive)
    try:
        assert call(lambda lease: Effect.objects.create(name="e") and "done").result == "done"
    finally:
        for signal in (signals.claimed, signals.completed):
            signal.disconnect(receive)
        signals.completed.disconnect(areceive)
    assert sorted(seen, key=str) == [0, 1, "loop"]
    assert "of a receiver" in caplog.text


@callers([("attempt", "memory"), ("aattempt", "memory")])
def test_left_is_told_to_nobody_who_came_after_the_claim(call):
    """A gauge that counts attempts would go below zero."""
    told = Mock()
    try:
        call(lambda lease: signals.left.connect(told))
    finally:
        signals.left.disconnect(told)
    assert told.call_count == 0


class Interrupt(BaseException):
    """What a handler of the operating system's signals raises."""


@callers([("run", "memory"), ("arun", "memory")])
@pytest.mark.parametrize("arrived", [True, False])
def test_an_interrupt_of_a_completion_repeats_it_and_fails_no_record(call, heard, arrived):
    """A FAIL could overtake a COMPLETE that is on its way, and free the key of work that stands."""
    memory = store_for()
    complete, memory.fail = memory.complete, Mock()
    calls = []

    def interrupted(*arguments, **keywords):
        calls.append(arguments)
        if arrived or len(calls) == 2:
            expires_at = complete(*arguments, **keywords)
        if len(calls) == 1:
            raise Interrupt
        return expires_at

    memory.complete = interrupted
    with pytest.raises(Interrupt):
        call(done)
    assert (len(calls), memory.fail.call_count) == (2, 0)
    assert heard() == (["claimed", "completed"], ["completed"])
    assert call(done).replayed
