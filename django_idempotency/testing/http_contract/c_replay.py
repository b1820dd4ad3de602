"""Section C, R24 to R36: the first answer, and its replays."""

from __future__ import annotations

from django_idempotency.testing.http_contract.asking import Asking
from django_idempotency.testing.http_contract.declared import needs
from django_idempotency.testing.http_contract.wire import Answer

#: What of an answer's header is replayed (R30).
KEPT = (
    "Content-Type",
    "Content-Language",
    "Content-Disposition",
    "Content-Encoding",
    "Location",
    "Content-Location",
    "ETag",
    "Last-Modified",
    "Link",
    "Vary",
)
#: What never is.
NEVER = ("Set-Cookie", "WWW-Authenticate", "X-Request-Id", "X-RateLimit-Remaining")
HTML = "text/html"


class ReplayRules(Asking):
    """R24 to R36."""

    def expect_snapshot(self, answer: Answer, of: Answer) -> None:
        """Fail unless it is a replay with the other's header fields."""
        self.expect_replay(answer, of=of)
        for name in KEPT:
            assert answer.headers.get_all(name) == of.headers.get_all(name), (name, answer, of)
        if "Content-Length" in answer.headers:
            assert answer.headers["Content-Length"] == str(len(of.body)), answer

    def test_R24_first_is_the_views_own(self) -> None:
        tag = self.new()
        first = self.ask(self.create(tag), self.new())
        assert first.is_success, first
        assert self.replay_header not in first.headers, first
        assert "Idempotency-Stored" not in first.headers, first
        self.expect_once(tag)

    def test_R25_replay_is_byte_equal(self) -> None:
        tag = self.new()
        first, again = self.twice(self.create(tag), self.new())
        self.expect_first(first)
        self.expect_snapshot(again, of=first)
        assert again.headers[self.replay_header] == "true"
        self.expect_once(tag)

    def test_R26_every_duplicate_is_a_replay(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), key)
        for _ in range(5):
            self.expect_replay(self.ask(self.create(tag), key), of=first)
        self.expect_once(tag)

    @needs("change")
    def test_R27_replay_is_a_snapshot(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), key)
        self.change(first)
        self.expect_replay(self.ask(self.create(tag), key), of=first)

    @needs("successes")
    def test_R28_every_success_replays_as_it_is(self) -> None:
        for status, _, call in self.each(self.successes):
            first, again = self.twice(call, self.new())
            assert first.status == status, first
            self.expect_first(first)
            self.expect_snapshot(again, of=first)
            if status == 202:
                assert again.headers.get("Retry-After") == first.headers.get("Retry-After")

    @needs("bodies")
    def test_R29_bodies_are_byte_equal(self) -> None:
        for _, _, call in self.each(self.bodies):
            first, again = self.twice(call, self.new())
            self.expect_first(first)
            assert first.body
            self.expect_snapshot(again, of=first)

    def test_R30_header_fields_of_a_connection_are_not_replayed(self) -> None:
        first, again = self.twice(self.create(self.new()), self.new())
        self.expect_snapshot(again, of=first)
        for name in NEVER:
            assert name not in again.headers, again

    @needs("adorned")
    def test_R30_header_fields_of_the_answer_are_replayed(self) -> None:
        first, again = self.twice(self.adorned(self.new()), self.new())
        for name in ("Location", "ETag", "Set-Cookie", "X-Request-Id", *self.replay_headers):
            assert name in first.headers, first
        self.expect_snapshot(again, of=first)
        for name in set(NEVER) - set(self.replay_headers):
            assert name not in again.headers, again
        for name in self.replay_headers:
            assert again.headers[name] == first.headers[name], again

    def test_R31_replays_and_mismatches_are_never_stored_in_between(self) -> None:
        key = self.new()
        first, again = self.twice(self.create(self.new()), key)
        other = self.ask(self.create(self.new()), key)
        self.expect_replay(again, of=first)
        assert other.status == self.mismatch_status, other
        for answer in (again, other):
            assert answer.headers["Cache-Control"] == "no-store", answer

    @needs("held")
    def test_R31_a_refusal_meanwhile_is_never_stored_in_between(self) -> None:
        tag, key = self.new(), self.new()
        with self.in_flight(tag, self.held(tag), key) as flight:
            assert flight.refused.status == self.in_progress_status, flight
            assert flight.refused.headers["Cache-Control"] == "no-store", flight

    @needs("other_media_type")
    def test_R32_another_accept_gets_the_stored_representation(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), key)
        accept = [("Accept", self.other_media_type or "")]
        again = self.ask(self.create(tag), key, headers=accept)
        fresh = self.ask(self.create(self.new()), self.new(), headers=accept)
        self.expect_snapshot(again, of=first)
        assert fresh.headers.get_content_type() == self.other_media_type, fresh

    @needs("conditional")
    def test_R33_if_match_on_a_retry_is_a_replay(self) -> None:
        tag = self.new()
        call = self.conditional(tag)
        first, again = self.twice(call, self.new())
        self.expect_first(first)
        self.expect_snapshot(again, of=first)
        assert self.ask(call, self.new()).status == 412

    @needs("alice_forbidden")
    def test_R34_permission_withdrawn_in_between_is_403(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), key)
        refused = self.ask(self.create(tag), key, user="alice_forbidden")
        assert refused.status == 403, refused
        assert self.replay_header not in refused.headers, refused
        assert first.body == b"" or first.body not in refused.body, refused

    @needs("checked")
    def test_R34_replay_check_that_says_no_is_403(self) -> None:
        tag, key = self.new(), self.new()
        passing, refused = self.checked(tag)
        first = self.created(refused, key)
        answer = self.ask(refused, key)
        self.expect_problem(answer, 403, "replay_refused")
        assert self.replay_header not in answer.headers, answer
        self.expect_replay(self.ask(passing, key), of=first)
        self.expect_once(tag)

    @needs("other_media_type")
    def test_R35_an_answer_in_another_media_type_replays(self) -> None:
        tag, key = self.new(), self.new()
        accept = [("Accept", self.other_media_type or "")]
        first = self.ask(self.create(tag), key, headers=accept)
        again = self.ask(self.create(tag), key, headers=accept)
        assert first.headers.get_content_type() == self.other_media_type, first
        self.expect_first(first)
        self.expect_snapshot(again, of=first)
        self.expect_once(tag)

    @needs("optional")
    def test_R36_first_callers_answer_is_that_of_a_caller_without_a_key(self) -> None:
        guarded = self.created(self.optional(self.new()), self.new())
        free = self.created(self.optional(self.new()), None)
        assert guarded.status == free.status
        assert guarded.names() - free.names() <= {"idempotency-expires"}
        assert free.names() <= guarded.names()
        assert _cookies(guarded) == _cookies(free)


def _cookies(answer: Answer) -> list[str]:
    """Return the names of the cookies that an answer sets."""
    return [line.partition("=")[0] for line in answer.headers.get_all("Set-Cookie", [])]
