"""Section E, R49 to R53: several requests at once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from django_idempotency.testing.http_contract.asking import Asking
from django_idempotency.testing.http_contract.declared import needs
from django_idempotency.testing.http_contract.wire import Answer

DUPLICATES = 32
NOT_AT_ALL = [("Prefer", "wait=0")]


class ConcurrencyRules(Asking):
    """R49 to R53."""

    @needs("held")
    def test_R49_second_while_the_first_runs_is_refused(self) -> None:
        tag, key = self.new(), self.new()
        with self.in_flight(tag, self.held(tag), key) as flight:
            again = self.ask(self.held(tag), key)
            first = self.ended(tag, flight)
        for answer in (flight.refused, again):
            self.expect_problem(answer, self.in_progress_status, "in_progress")
            title = "A request is outstanding for this Idempotency-Key"
            assert answer.json["title"] == title, answer
            assert 1 <= answer.retry_after <= 30, answer
            assert self.replay_header not in answer.headers, answer
        self.expect_first(first)
        self.expect_replay(self.ask(self.held(tag), key), of=first)
        self.expect_once(tag)

    @needs("held", "lease")
    def test_R49_Retry_After_is_at_most_what_is_left_of_the_lease(self) -> None:
        tag, key = self.new(), self.new()
        with self.in_flight(tag, self.held(tag), key) as flight:
            assert 1 <= flight.refused.retry_after <= math.ceil(self.lease or 1), flight

    def test_R50_equal_requests_at_once_run_once(self) -> None:
        tag, key = self.new(), self.new()
        sent = [self.send(self.create(tag), key) for _ in range(DUPLICATES)]
        answers = [exchange.answer() for exchange in sent]
        first = self.only_first(answers)
        for answer in answers:
            if answer is not first and not self.is_in_progress(answer):
                self.expect_replay(answer, of=first)
        self.expect_replay(self.ask(self.create(tag), key), of=first)
        self.expect_once(tag)

    def only_first(self, answers: Sequence[Answer]) -> Answer:
        """Return the one success that is no replay; fail unless there is just one."""
        firsts = [
            answer
            for answer in answers
            if answer.is_success and self.replay_header not in answer.headers
        ]
        assert len(firsts) == 1, answers
        return firsts[0]

    @needs("waiting")
    def test_R51_duplicates_wait_for_the_answer(self) -> None:
        tag, key = self.new(), self.new()
        call = self.waiting(tag)
        with self.in_flight(tag, call, key, NOT_AT_ALL) as flight:
            waiting = [self.send(call, key) for _ in range(3)]
            early = self.first_answered(waiting, 0.3)
            first = self.ended(tag, flight)
            answers = [exchange.answer() for exchange in waiting]
        assert early is None, answers
        assert self.is_in_progress(flight.refused), flight
        self.expect_first(first)
        for answer in answers:
            self.expect_replay(answer, of=first)
        self.expect_once(tag)

    @needs("waiting")
    def test_R51_at_the_end_of_its_patience_a_duplicate_is_refused(self) -> None:
        tag, key = self.new(), self.new()
        call = self.waiting(tag)
        with self.in_flight(tag, call, key, NOT_AT_ALL):
            since = time.monotonic()
            answer = self.ask(call, key, headers=[("Prefer", "wait=1")])
            waited = time.monotonic() - since
        assert self.is_in_progress(answer), answer
        assert 0.8 <= waited < 5

    @needs("waiting_for_a_failure")
    def test_R52_winner_fails_and_one_waiter_owns(self) -> None:
        tag, key = self.new(), self.new()
        call = self.waiting_for_a_failure(tag)
        with self.in_flight(tag, call, key, NOT_AT_ALL) as flight:
            waiting = [self.send(call, key) for _ in range(3)]
            early = self.first_answered(waiting, 0.3)
            failed = self.ended(tag, flight)
            answers = [exchange.answer() for exchange in waiting]
        assert early is None, answers
        assert failed.status >= 500, failed
        first = self.only_first(answers)
        for answer in answers:
            if answer is not first:
                self.expect_replay(answer, of=first)
        if self.rolls_back:
            self.expect_once(tag)

    @needs("held")
    def test_R53_other_keys_do_not_wait(self) -> None:
        tag, others = self.new(), self.new()
        with self.in_flight(tag, self.held(tag), self.new()) as flight:
            sent = [self.send(self.create(others), self.new()) for _ in range(4)]
            answers: list[Answer] = [exchange.answer() for exchange in sent]
            early = self.first_answered([flight.owner], 0)
            first = self.ended(tag, flight)
        assert early is None, "the work was not held any more"
        for answer in (first, *answers):
            self.expect_first(answer)
        assert self.effects(others) == 4
