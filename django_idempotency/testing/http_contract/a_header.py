"""Section A, R1 to R18: the key's header field, and which requests are guarded."""

from __future__ import annotations

from django_idempotency.testing.http_contract.asking import Asking, quoted
from django_idempotency.testing.http_contract.declared import needs
from django_idempotency.testing.http_contract.wire import JSON, Answer

INVALID = (400, "idempotency_key_invalid")


class HeaderRules(Asking):
    """R1 to R18."""

    def invalid(self, *fields: str) -> None:
        """Fail unless each of these header fields is refused, and nothing is run."""
        tag = self.new()
        for field in fields:
            self.expect_problem(self.ask(self.create(tag), None, field=field), *INVALID)
        assert self.effects(tag) == 0

    @needs("required")
    def test_R1_missing_key_is_a_problem_that_says_where_to_read(self) -> None:
        tag, key = self.new(), self.new()
        answer = self.ask(self.create(tag), None)
        assert answer.status == 400, answer
        assert answer.headers.get_content_type() == "application/problem+json", answer
        assert answer.json["title"] == "Idempotency-Key is missing"
        assert answer.json["type"].startswith(("http://", "https://"))
        assert answer.headers["Link"] == f'<{answer.json["type"]}>; rel="describedby"'
        assert self.effects(tag) == 0
        self.created(self.create(tag), key)

    @needs("optional")
    def test_R2_without_a_key_it_runs_each_time(self) -> None:
        tag = self.new()
        for _ in range(2):
            self.created(self.optional(tag), None)
        assert self.effects(tag) == 2

    def test_R3_key_stands_between_the_quotes(self) -> None:
        tag, key = self.new(), self.new()
        first = self.ask(self.create(tag), None, field=f'"{key}"')
        self.expect_first(first)
        self.expect_replay(self.ask(self.create(tag), None, field=f'"{key}"'), of=first)

    def test_R4_bare_characters_are_the_same_key(self) -> None:
        tag, key = self.new(), self.new()
        first = self.ask(self.create(tag), None, field=f'"{key}"')
        self.expect_first(first)
        self.expect_replay(self.ask(self.create(tag), None, field=key), of=first)
        self.expect_once(tag)

    @needs("strict")
    def test_R4_strict_header_refuses_bare(self) -> None:
        tag, key = self.new(), self.new()
        self.expect_problem(self.ask(self.strict(tag), None, field=key), *INVALID)
        self.created(self.strict(tag), key)

    def test_R5_escapes_are_undone(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), f'{key}a"b\\c')
        field = rf'"{key}a\"b\\c"'
        self.expect_replay(self.ask(self.create(tag), None, field=field), of=first)
        first = self.ask(self.create(tag), None, field=rf'"{key}\\"')
        self.expect_first(first)
        bare = self.ask(self.create(tag), None, field=f"{key}\\")  # as R4 has it
        self.expect_replay(bare, of=first)

    def test_R5_what_no_string_is_made_of_is_400(self) -> None:
        tag, key = self.new(), self.new()
        self.invalid(rf'"{key}a\b"', f'"{key}', f'{key}"', f'"{key}"b"', f'"a\tb{key}"')
        for byte in ("\x00", "\x01", "\x1f", "\x7f", "\x80", "\xe9", "\xff"):
            for field in (f'"a{byte}b"', f"a{byte}b"):
                self.expect_refused_bytes(self.ask(self.create(tag), None, field=field))
        assert self.effects(tag) == 0

    def test_R6_parameters_are_dropped(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), key)
        for parameters in (";v=1", ";v", '; v=1;w="x"'):
            again = self.ask(self.create(tag), None, field=f'"{key}"{parameters}')
            self.expect_replay(again, of=first)

    def test_R6_malformed_parameters_are_400(self) -> None:
        key = self.new()
        self.invalid(*(f'"{key}"{parameters}' for parameters in (";", ";V=1", " ;v=1", "v")))

    def test_R7_two_field_lines_are_400(self) -> None:
        tag, one, other = self.new(), self.new(), self.new()
        for second in (one, other):
            both = [(self.header, quoted(one)), (self.header, quoted(second))]
            self.expect_problem(self.ask(self.create(tag), None, headers=both), *INVALID)
        assert self.effects(tag) == 0

    def test_R7_a_comma_is_400_unless_it_is_quoted(self) -> None:
        key = self.new()
        self.invalid(f'"{key}", "b"', f'"{key}","{key}"', f"{key},b", ",")
        tag = self.new()
        first = self.created(self.create(tag), f"{key},b")
        self.expect_replay(self.ask(self.create(tag), f"{key},b"), of=first)

    def test_R8_empty_is_invalid_and_not_missing(self) -> None:
        self.invalid("", " ", '""', '" "')

    def test_R9_1_to_255_characters(self) -> None:
        for key in (self.new().ljust(255, "k"), self.new().ljust(255, "\\")):
            tag = self.new()
            first = self.created(self.create(tag), key)
            self.expect_replay(self.ask(self.create(tag), key), of=first)
            tag = self.new()
            self.created(self.create(tag), f"{key[:-1]}z")
        one = self.ask(self.create(self.new()), "k")
        assert one.status != 400, one  # somebody may have used it before

    def test_R9_256_characters_are_400(self) -> None:
        self.invalid("k" * 256, quoted("k" * 256))

    def test_R10_a_key_has_no_form_unless_the_api_wants_one(self) -> None:
        for key in (f"order {self.new()}", f"#/{self.new()}?=&", f"{self.new()};v=1"):
            tag = self.new()
            first = self.created(self.create(tag), key)
            self.expect_replay(self.ask(self.create(tag), key), of=first)

    @needs("only_uuids")
    def test_R10_key_validator_refuses(self) -> None:
        tag, number = self.new(), f"{self.new()}{self.new()}"
        uuid = "-".join((number[:8], number[8:12], number[12:16], number[16:20], number[20:]))
        for key in (self.new(), number, f"{{{uuid}}}", f"{uuid}0"):
            self.expect_problem(self.ask(self.only_uuids(tag), key), *INVALID)
        self.created(self.only_uuids(tag), uuid)
        self.expect_once(tag)

    def test_R11_keys_are_case_sensitive_and_byte_exact(self) -> None:
        key = f"k{self.new()}"
        for other in (key, key.upper(), f"{key} ", f" {key}", f"{key}."):
            tag = self.new()
            self.created(self.create(tag), other)

    def test_R12_safe_methods_pass_with_any_key(self) -> None:
        tag, key = self.new(), self.new()
        call = self.create(tag)
        for method in ("GET", "HEAD", "OPTIONS", "TRACE"):
            safe = call.but(method=method, body=None)
            free = self.ask(safe, None)
            for field in (quoted(key), '"malformed', ""):
                answer = self.ask(safe, None, field=field)
                assert answer.status == free.status, (method, answer)
                assert answer.names() == free.names(), (method, answer)
        self.created(call, key)

    @needs("other_methods")
    def test_R13_unsafe_methods_are_guarded(self) -> None:
        for call in self.other_methods(self.new()):
            first, again = self.twice(call, self.new())
            self.expect_first(first)
            self.expect_replay(again, of=first)
            missing = self.ask(call, None)
            assert missing.status == (400 if self.required else first.status), missing

    @needs("open_methods")
    def test_R13_methods_that_are_not_guarded_run_each_time(self) -> None:
        for call in self.open_methods(self.new()):
            for answer in self.twice(call, self.new()):
                self.expect_first(answer)

    def refused(self, user: str, *statuses: int) -> None:
        """Fail unless this caller is refused before anybody looks at the key (R14)."""
        tag, key = self.new(), self.new()
        for first in (True, False):
            answer = self.ask(self.create(tag), key, user=user)
            assert answer.status in statuses, answer
            assert self.replay_header not in answer.headers, answer
            assert not answer.tells(tag), answer
            if first:
                stored = self.created(self.create(tag), key)
        self.expect_replay(self.ask(self.create(tag), key), of=stored)
        malformed = self.ask(self.create(tag), None, user=user, field='"malformed')
        assert malformed.status in statuses, malformed
        self.expect_once(tag)

    @needs("alice")
    def test_R14_a_stranger_claims_no_key_and_gets_no_stored_body(self) -> None:
        self.refused("nobody", 401, 403)

    @needs("alice_forbidden")
    def test_R14_a_forbidden_caller_claims_no_key_and_gets_no_stored_body(self) -> None:
        self.refused("alice_forbidden", 403)

    @needs("alice_throttled")
    def test_R14_a_throttled_caller_claims_no_key_and_gets_no_stored_body(self) -> None:
        self.refused("alice_throttled", 429)

    def free_after(self, refused: Answer, key: str) -> None:
        assert not refused.is_success, refused
        assert self.replay_header not in refused.headers, refused
        tag = self.new()
        self.created(self.create(tag), key)
        self.expect_once(tag)

    def test_R15_a_route_that_is_none_claims_no_key(self) -> None:
        key = self.new()
        call = self.create(self.new())
        path, _, query = call.path.partition("?")
        call = call.but(path=f"{path.rstrip('/')}/{self.new()}/{'?' if query else ''}{query}")
        refused = self.ask(call, key)
        assert refused.status in (404, 405), refused
        self.free_after(refused, key)

    @needs("takes_json")
    def test_R15_a_body_that_cannot_be_read_leaves_the_key_free(self) -> None:
        key = self.new()
        refused = self.ask(self.create(self.new()).but(body=b'{"', content_type=JSON), key)
        assert refused.status == 400, refused
        self.free_after(refused, key)

    @needs("unread")
    def test_R15_what_is_refused_before_any_work_leaves_the_key_free(self) -> None:
        for status, _, call in self.each(self.unread):
            key = self.new()
            refused = self.ask(call, key)
            assert refused.status == status, refused
            self.free_after(refused, key)

    @needs("echoing")
    def test_R16_echo_key_returns_the_key(self) -> None:
        tag, key = self.new(), f'{self.new()}"\\'
        for answer in self.twice(self.echoing(tag), key):
            assert answer.headers[self.header] == quoted(key), answer

    @needs("doubly_guarded")
    def test_R17_several_guards_do_the_work_once(self) -> None:
        for _, tag, call in self.each(self.doubly_guarded):
            first, again = self.twice(call, self.new())
            self.expect_first(first)
            self.expect_replay(again, of=first)
            self.expect_once(tag)

    @needs("kinds")
    def test_R18_every_kind_of_view_behaves_alike(self) -> None:
        for name, _, call in self.each(self.kinds):
            key = self.new()
            first, again = self.twice(call, key)
            self.expect_first(first)
            self.expect_replay(again, of=first)
            assert again.headers["Cache-Control"] == "no-store", (name, again)
            other = self.ask(self.kinds(self.new())[name], key)
            assert other.status == self.mismatch_status, (name, other)
