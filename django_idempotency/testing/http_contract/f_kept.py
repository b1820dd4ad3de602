"""Section F, R55 to R64: which answers are kept, and what becomes of the work of the others."""

from __future__ import annotations

from django_idempotency.testing.http_contract.asking import Asking
from django_idempotency.testing.http_contract.declared import needs
from django_idempotency.testing.http_contract.wire import Answer

#: Nothing was executed, so the corrected request may use the key.
RELEASED = frozenset({400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429})


class KeptRules(Asking):
    """R55 to R64, and R90."""

    @needs("kept_errors")
    def test_R55_errors_of_the_domain_are_kept(self) -> None:
        for status, _, call in self.each(self.kept_errors):
            assert 400 <= status < 500
            assert status not in RELEASED
            first, again = self.twice(call, self.new())
            assert first.status == status, first
            assert self.replay_header not in first.headers, first
            self.expect_replay(again, of=first)

    @needs("released_errors")
    def test_R55_after_a_released_error_the_key_is_free(self) -> None:
        for status, _, call in self.each(self.released_errors):
            assert status in RELEASED
            tag, key = self.new(), self.new()
            for answer in self.twice(call, key):
                assert answer.status == status, answer
                assert self.replay_header not in answer.headers, answer
                assert "Idempotency-Stored" not in answer.headers, answer
            self.created(self.create(tag), key)
            self.expect_once(tag)

    @needs("failures")
    def test_R55_R58_after_a_failure_the_same_may_run_again_and_nothing_else(self) -> None:
        for status, _, call in self.each(self.failures):
            assert status >= 500
            tag, key = self.new(), self.new()
            failed = self.ask(call, key)
            other = self.ask(self.create(tag), key)
            again = self.ask(call, key)
            assert other.status == self.mismatch_status, other
            for answer in (failed, again):
                assert answer.status == status, answer
                assert self.replay_header not in answer.headers, answer
            assert self.effects(tag) == 0

    @needs("presets")
    def test_R56_success_keeps_success_and_stripe_keeps_everything(self) -> None:
        for preset in ("success", "stripe"):
            for status in sorted(self.presets(self.new())[preset]):
                call = self.presets(self.new())[preset][status]
                first, again = self.twice(call, self.new())
                assert first.status == again.status == status, (preset, first, again)
                kept = preset == "stripe" or status < 400
                assert self.is_replay(again) == kept, (preset, again)
                if kept:
                    self.expect_replay(again, of=first)

    @needs("failures", "rolls_back")
    def test_R57_work_of_a_failure_is_rolled_back(self) -> None:
        for _, tag, call in self.each(self.failures):
            self.ask(call, self.new())
            assert self.effects(tag) == 0

    @needs("refusing")
    def test_R57_a_refusal_that_was_returned_commits_its_work(self) -> None:
        tag = self.new()
        first, again = self.twice(self.refusing(tag), self.new())
        assert first.status == again.status, (first, again)
        assert first.status in RELEASED, first
        assert not self.is_replay(again), again
        assert self.effects(tag) == 2

    @needs("raising", "rolls_back")
    def test_R57_an_error_that_was_raised_is_kept_without_its_work(self) -> None:
        tag = self.new()
        first, again = self.twice(self.raising(tag), self.new())
        assert 400 <= first.status < 500, first
        assert first.status not in RELEASED
        self.expect_replay(again, of=first)
        assert self.effects(tag) == 0

    @needs("optional_answers")
    def test_R90_a_key_changes_nothing_about_what_a_request_leaves_behind(self) -> None:
        for status in self.optional_answers(self.new()):
            left = []
            for key in (None, self.new()):
                tag = self.new()
                answer = self.ask(self.optional_answers(tag)[status], key)
                assert answer.status == status, answer
                left.append(self.effects(tag))
            assert left[0] == left[1], (status, left)

    @needs("failing_after_commit", "rolls_back")
    def test_R58_work_whose_hook_raises_has_committed(self) -> None:
        tag, key = self.new(), self.new()
        first = self.ask(self.failing_after_commit(tag), key)
        again = self.ask(self.failing_after_commit(tag), key)
        assert first.status >= 500, first
        assert self.is_replay(again), again
        assert again.is_success, again
        self.expect_once(tag)

    @needs("crash")
    def test_R59_killed_right_after_the_answer_a_retry_replays(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), key)
        self.crash()
        self.expect_replay(self.ask(self.create(tag), key), of=first)
        self.expect_once(tag)

    @needs("unwritable", "rolls_back")
    def test_R60_work_whose_completion_cannot_be_written_is_rolled_back(self) -> None:
        tag = self.new()
        answer = self.ask(self.unwritable(tag), self.new())
        self.expect_unavailable(answer)
        assert self.effects(tag) == 0

    @needs("unwritable_separate")
    def test_R60_separate_work_whose_completion_cannot_be_written_is_answered(self) -> None:
        tag = self.new()
        answer = self.ask(self.unwritable_separate(tag), self.new())
        self.expect_first(answer)
        assert answer.headers["Idempotency-Stored"] == "false", answer
        assert "Idempotency-Expires" not in answer.headers, answer
        self.expect_once(tag)

    @needs("unreachable")
    def test_R61_store_down_at_the_claim_is_503(self) -> None:
        tag = self.new()
        self.expect_unavailable(self.ask(self.unreachable(tag), self.new()))
        assert self.effects(tag) == 0

    @needs("unreachable_open")
    def test_R61_fail_open_runs_without_a_guard(self) -> None:
        tag = self.new()
        for answer in self.twice(self.unreachable_open(tag), self.new()):
            self.expect_first(answer)
            assert answer.headers["Idempotency-Stored"] == "false", answer
        assert self.effects(tag) == 2

    def expect_unavailable(self, answer: Answer) -> None:
        """Fail unless the answer says that the store is out of reach."""
        self.expect_problem(answer, 503, "store_unavailable")
        assert answer.retry_after >= 1, answer
        assert answer.headers["Cache-Control"] == "no-store", answer

    @needs("unkept")
    def test_R62_what_cannot_be_kept_is_delivered_and_does_not_run_again(self) -> None:
        for _, tag, call in self.each(self.unkept):
            key = self.new()
            first = self.created(call, key)
            assert first.body
            assert first.headers["Idempotency-Stored"] == "false"
            for _ in range(2):
                answer = self.ask(call, key)
                self.expect_problem(answer, 409, "result_unavailable")
                assert answer.json["retryable"] is False, answer
                assert "Retry-After" not in answer.headers, answer
            self.expect_once(tag)

    @needs("files")
    def test_R62_files_are_kept(self) -> None:
        for _, tag, call in self.each(self.files):
            first, again = self.twice(call, self.new())
            self.expect_first(first)
            assert first.body
            assert "Idempotency-Stored" not in first.headers, first
            self.expect_replay(again, of=first)
            for name in ("Content-Type", "Content-Disposition", "Content-Length"):
                assert again.headers.get(name) == first.headers.get(name), (again, first)
            self.expect_once(tag)

    @needs("held")
    def test_R63_a_client_that_hangs_up_leaves_no_half_done_work(self) -> None:
        tag, key = self.new(), self.new()
        with self.in_flight(tag, self.held(tag), key) as flight:
            flight.owner.hang_up()
            self.let_go(tag)
            answer = self.until(
                lambda: self.ask(self.held(tag), key), lambda answer: answer.status < 400
            )
        self.expect_replay(self.ask(self.held(tag), key), of=answer)
        self.expect_once(tag)

    @needs("falsy")
    def test_R64_falsy_results_replay_as_they_are(self) -> None:
        for _, tag, call in self.each(self.falsy):
            first, again = self.twice(call, self.new())
            self.expect_first(first)
            self.expect_replay(again, of=first)
            self.expect_once(tag)
