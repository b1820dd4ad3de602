"""Claims that race: one winner per key, in threads and in processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter

import pytest

from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress
from django_idempotency.records import Lease, State
from tests.integration.database import claims
from tests.integration.database.claims import claim_request, effects, operation, state_of, work
from tests.services.processes import end, spawn

pytestmark = pytest.mark.django_db(transaction=True)

THREADS = 8


@pytest.mark.parametrize("before", [claims.absent, claims.failed, claims.lapsed, claims.expired])
def test_I1_one_of_eight_threads_wins_each_key(store, run_in_threads, before):
    keys = [f"key {number}" for number in range(50)]
    for key in keys:
        before(store, claim_request(key))

    together = threading.Barrier(THREADS)

    def claim_all(index):
        won = []
        for key in keys:
            together.wait(30)
            if isinstance(store.claim(claim_request(key)), Lease):
                won.append(key)
        return won

    winners = Counter(key for won in run_in_threads(THREADS, claim_all) for key in won)
    assert winners == dict.fromkeys(keys, 1)


@pytest.mark.parametrize("mode", ["single", "joined", "separate"])
def test_I5_R26_work_of_each_key_is_done_once(store, run_in_threads, mode):
    keys = [f"key {number}" for number in range(25)]
    engine = Engine(store)

    def run_all(index):
        answers = []
        for key in keys:
            try:
                answers.append(engine.run(operation(key, transaction=mode), work(key)))
            except InProgress:
                answers.append(None)
        return answers

    answers = run_in_threads(THREADS, run_all, seconds=60)
    assert sorted(effects()) == sorted(keys)
    assert all(state_of(store, key) is State.COMPLETED for key in keys)
    for key, outcomes in zip(keys, zip(*answers, strict=True), strict=True):
        told = [outcome for outcome in outcomes if outcome is not None]
        assert {outcome.result for outcome in told} == {key}
        assert [outcome.replayed for outcome in told].count(False) == 1


def test_I5_R26_modes_may_be_mixed(store, run_in_threads):
    keys = [f"key {number}" for number in range(25)]
    engine = Engine(store)
    modes = ("single", "joined", "separate")

    def run_all(index):
        ran = 0
        for key in keys:
            try:
                asked = operation(key, transaction=modes[index % 3])
                ran += not engine.run(asked, work(key)).replayed
            except InProgress:
                continue
        return ran

    assert sum(run_in_threads(THREADS, run_all, seconds=60)) == len(keys)
    assert sorted(effects()) == sorted(keys)


def test_I9_sweeps_that_race_delete_each_record_once(store, run_in_threads):
    for number in range(60):
        claims.expired(store, claim_request(f"expired {number}"))
        claims.completed(store, claim_request(f"completed {number}"))

    def sweep_all(index):
        return sum(iter(lambda: store.sweep(limit=5), 0))

    # Who meets nothing but rows that others hold stops early, so the rest is swept afterwards.
    assert sum(run_in_threads(4, sweep_all)) + sweep_all(0) == 60
    assert all(state_of(store, f"completed {number}") for number in range(60))


@pytest.mark.processes
def test_I1_one_of_two_processes_wins_each_key(process_environment):
    with Racer(process_environment) as first, Racer(process_environment) as second:
        assert (first.answer(), second.answer()) == (b"r", b"r")
        for number in range(200):
            # Who is told first is ahead by a little, so they take turns.
            for racer in (first, second) if number % 2 else (second, first):
                racer.start()
            assert {first.answer(), second.answer()} == {b"0", b"1"}, number


class Racer:
    """The process of `tests.integration.database.racer`, with a pipe to it and one from it."""

    def __init__(self, environment):
        their_starts, self._starts = os.pipe()
        self._answers, their_answers = os.pipe()
        theirs = [their_starts, their_answers]
        command = [sys.executable, "-m", "tests.integration.database.racer", *map(str, theirs)]
        self._process = spawn(command, env=environment, pass_fds=theirs)
        for descriptor in theirs:
            os.close(descriptor)

    def start(self):
        os.write(self._starts, b"!")

    def answer(self):
        """The next answer; empty if the process has ended."""
        return os.read(self._answers, 1)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        os.close(self._starts)
        os.close(self._answers)
        end(self._process, signal.SIGTERM)
