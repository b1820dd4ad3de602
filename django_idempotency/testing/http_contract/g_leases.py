"""Sections G and H, R65 to R77: leases that lapse, and records that expire."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from django_idempotency.testing.http_contract.asking import PAUSE, Asking
from django_idempotency.testing.http_contract.declared import needs
from django_idempotency.testing.http_contract.wire import Answer

EXPIRES = "Idempotency-Expires"


class LeaseRules(Asking):
    """R65 to R77."""

    @needs("held", "crash", "lease")
    def test_R65_killed_in_the_work_a_retry_waits_for_the_lease_and_runs_once(self) -> None:
        tag, key = self.new(), self.new()
        begun = time.monotonic()
        with self.in_flight(tag, self.held(tag), key) as flight:
            self.crash()
            try:
                late: Answer | None = flight.owner.answer()
            except ConnectionError:
                late = None
            self.let_go(tag)
            retry = early = self.ask(self.held(tag), key)
            is_live = time.monotonic() - begun < (self.lease or 0)  # unless starting took longer
            if self.is_in_progress(early):
                retry = self.until(
                    lambda: self.ask(self.held(tag), key), lambda a: not self.is_in_progress(a)
                )
        assert late is None, late
        if is_live:
            assert self.is_in_progress(early), early
            assert 1 <= early.retry_after <= 30, early
        self.expect_first(retry)
        self.expect_replay(self.ask(self.held(tag), key), of=retry)
        self.expect_once(tag)

    @needs("lapsing")
    def test_R66_a_late_owner_is_refused_and_the_successors_result_stands(self) -> None:
        tag, key = self.new(), self.new()
        call = self.lapsing(tag)
        with self.in_flight(tag, call, key) as flight:
            successor = self.until(
                lambda: self.ask(call, key), lambda answer: not self.is_in_progress(answer)
            )
            late = self.ended(tag, flight)
        self.expect_first(successor)
        self.expect_problem(late, 409, "lease_lost")
        self.expect_replay(self.ask(call, key), of=successor)
        if self.rolls_back:
            self.expect_once(tag)

    @needs("lapsing_failure")
    def test_R67_a_late_failure_does_not_touch_the_successors_result(self) -> None:
        tag, key = self.new(), self.new()
        call = self.lapsing_failure(tag)
        with self.in_flight(tag, call, key) as flight:
            successor = self.until(
                lambda: self.ask(call, key), lambda answer: not self.is_in_progress(answer)
            )
            late = self.ended(tag, flight)
        self.expect_first(successor)
        assert late.status >= 500, late
        self.expect_replay(self.ask(call, key), of=successor)
        if self.rolls_back:
            self.expect_once(tag)

    @needs("renewed")
    def test_R69_work_longer_than_its_lease_is_not_taken_over(self) -> None:
        tag, key = self.new(), self.new()
        call = self.renewed(tag)
        with self.in_flight(tag, call, key) as flight:
            over, lapses = False, time.monotonic() + 1.1 * self.renewed_lease
            while not over:
                time.sleep(PAUSE)
                over = time.monotonic() > lapses  # so one more comes after it
                answer = self.ask(call, key)
                assert self.is_in_progress(answer), answer
            first = self.ended(tag, flight)
        self.expect_first(first)
        self.expect_replay(self.ask(call, key), of=first)
        self.expect_once(tag)

    @needs("lapsing")
    def test_R70_take_over_needs_the_same_request(self) -> None:
        tag, others, key = self.new(), self.new(), self.new()
        with self.in_flight(tag, self.lapsing(tag), key) as flight:
            self.let_go(others)
            retry = flight.refused
            while self.is_in_progress(retry):  # until the lease has lapsed, and it is taken over
                other = self.ask(self.lapsing(others), key)
                assert other.status == self.mismatch_status, other
                retry = self.ask(self.lapsing(tag), key)
        self.expect_first(retry)
        assert self.effects(others) == 0

    @needs("refusing_stale")
    def test_R71_a_lapsed_lease_may_wait_for_an_operator(self) -> None:
        tag, key = self.new(), self.new()
        call = self.refusing_stale(tag)
        with self.in_flight(tag, call, key):
            stale = self.until(
                lambda: self.ask(call, key), lambda answer: not self.is_in_progress(answer)
            )
            again = self.ask(call, key)
        for answer in (stale, again):
            self.expect_problem(answer, 409, "stale")
            assert answer.json["retryable"] is False, answer
            assert "Retry-After" not in answer.headers, answer

    def test_R73_within_retention_it_replays_which_extends_nothing(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), key)
        for _ in range(3):
            again = self.ask(self.create(tag), key)
            self.expect_replay(again, of=first)
            assert EXPIRES in again.headers, again
            assert again.headers[EXPIRES] == first.headers[EXPIRES], again
        self.expect_once(tag)

    @needs("short_lived")
    def test_R73_R74_after_retention_it_runs_anything_and_not_before(self) -> None:
        tag, others, key = self.new(), self.new(), self.new()
        first = self.created(self.short_lived(tag), key)
        self.expect_replay(self.ask(self.short_lived(tag), key), of=first)
        early = self.ask(self.short_lived(others), key)
        second = self.until(
            lambda: self.ask(self.short_lived(others), key),
            lambda answer: answer.status != self.mismatch_status,
        )
        assert early.status == self.mismatch_status, early
        self.expect_first(second)
        assert datetime.now(timezone.utc) >= parsedate_to_datetime(first.headers[EXPIRES])
        self.expect_once(tag)
        self.expect_once(others)

    def test_R77_the_end_of_retention_is_published(self) -> None:
        for answer in self.twice(self.create(self.new()), self.new()):
            assert answer.headers.get(EXPIRES, "").endswith(" GMT"), answer
            until = parsedate_to_datetime(answer.headers[EXPIRES])
            assert until > parsedate_to_datetime(answer.headers["Date"]), answer
