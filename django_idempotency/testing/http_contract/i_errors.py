"""Section I, R78 to R81: problems, secrets and hostile input."""

from __future__ import annotations

from django_idempotency.testing.http_contract.asking import Asking
from django_idempotency.testing.http_contract.declared import needs

HOSTILE = (
    "';--",
    "'; DROP TABLE idempotency_record; --",
    "{{7*7}}",
    "{% debug %}",
    "%s%n{0.__class__}",
    "../../../etc/passwd",
    "%00%0d%0a",
    "<script>alert(1)</script>",
    "${jndi:ldap://x.example/a}",
    "%_%",
    "NULL",
)
BODIES = (
    (b"\0", "application/json"),
    (b'{"a": "\\u0000"}', "application/json"),
    (b'{"\\u0000": 1}', "application/json"),
    (b'"\\ud800"', "application/json"),
    (b"a=%00&b=\0", "application/x-www-form-urlencoded"),
    (b"\0" * 100, "application/octet-stream"),
    (b"a", "multipart/form-data"),
    (b"a", "application/json; charset=nonsense"),
    (b"a", "\xff/\xfe"),
)
MEMBERS = {"type", "title", "status", "detail", "instance", "code", "retryable", "safe_new_key"}


class ErrorRules(Asking):
    """R78 to R81."""

    def test_R78_members_of_a_problem(self) -> None:
        key, call = self.new(), self.create(self.new())
        self.created(call, key)
        told = [(self.ask(call, None, field='"'), False)]
        told.append((self.ask(self.create(self.new()), key), False))
        if self.required:
            told.append((self.ask(call, None), True))
        for answer, is_new_key_safe in told:
            assert answer.headers.get_content_type() == "application/problem+json", answer
            members = answer.json
            assert members.keys() == MEMBERS, answer
            assert members["status"] == answer.status, answer
            for name in ("type", "title", "detail", "code"):
                assert isinstance(members[name], str), answer
                assert members[name], answer
            assert members["code"] in members["type"], answer
            assert members["instance"] == call.path.partition("?")[0], answer
            assert members["retryable"] is False, answer
            assert members["safe_new_key"] is is_new_key_safe, answer
            assert answer.headers["Content-Language"], answer

    @needs("held")
    def test_R78_a_refusal_meanwhile_may_be_retried_with_the_same_key(self) -> None:
        tag, key = self.new(), self.new()
        with self.in_flight(tag, self.held(tag), key) as flight:
            members = flight.refused.json
        assert members.keys() == MEMBERS
        assert (members["retryable"], members["safe_new_key"]) == (True, False)

    @needs("rendered")
    def test_R78_error_renderer_replaces_the_problem(self) -> None:
        call, kind = self.rendered(self.new())
        answer = self.ask(call, None, field='"')
        assert answer.headers.get_content_type() == kind, answer
        assert answer.headers["Cache-Control"] == "no-store", answer

    def test_R79_problems_name_neither_key_nor_payload(self) -> None:
        key, tag = self.new(), self.new()
        self.created(self.create(self.new()), key)
        told = [self.ask(self.create(tag), key)]
        told += [
            self.ask(self.create(tag), None, field=field)
            for field in (f'"{key}', f"{key},", key * 20, f'"{key}";')
        ]
        for answer in told:
            assert not answer.is_success, answer
            assert not answer.tells(key), answer
            assert not answer.tells(tag), answer

    @needs("log")
    def test_R79_logs_name_neither_key_nor_payload(self) -> None:
        key, tag = f"key{self.new()}", self.new()
        self.twice(self.create(tag), key)
        self.ask(self.create(self.new()), key)
        self.ask(self.create(tag), None, field=f'"{key}')
        written = self.log()
        assert written
        assert key not in written
        assert tag not in written

    @needs("log", "failures")
    def test_R79_logs_of_failures_name_neither_key_nor_payload(self) -> None:
        for _, tag, call in self.each(self.failures):
            key = f"key{self.new()}"
            self.ask(call, key)
            written = self.log()
            assert key not in written
            assert tag not in written

    def test_R80_hostile_keys_are_inert(self) -> None:
        tag, keys = self.new(), (*HOSTILE, "\\" * 200)
        for key in keys:
            first, again = self.twice(self.create(tag), f"{key}{self.new()}")
            self.expect_first(first)
            self.expect_replay(again, of=first)
        assert self.effects(tag) == len(keys)

    def test_R80_hostile_keys_do_not_match_others(self) -> None:
        key = self.new()
        self.created(self.create(self.new()), key)
        for other in ("%", f"{key[:-1]}_", f"{key}%", f"{key[:-1]}*", f"{key[:-1]}.", f"{key}' --"):
            answer = self.ask(self.create(self.new()), other)
            assert not self.is_replay(answer), answer
            assert answer.status < 500, answer

    def test_R80_hostile_bodies_are_no_500(self) -> None:
        for body, kind in BODIES:
            call = self.create(self.new()).but(body=body, content_type=kind)
            for answer in self.twice(call, self.new()):
                assert answer.status < 500, (body[:20], kind, answer)

    def test_R81_8_KB_of_query_are_no_500(self) -> None:
        for query in ("contract=" + "c" * 8192, "&".join(["contract=12"] * 800)):
            call = self.create(self.new()).with_query(query)
            first, again = self.twice(call, self.new())
            assert first.status < 500, first
            if first.is_success:
                self.expect_replay(again, of=first)

    @needs("long_path")
    def test_R81_8_KB_of_path_are_no_500(self) -> None:
        for tail in ("a" * 8192, "a/" * 4096):
            tag, key = self.new(), self.new()
            first = self.created(self.long_path(tag, tail), key)
            self.expect_replay(self.ask(self.long_path(tag, tail), key), of=first)
            other = self.ask(self.long_path(tag, f"{tail}b"), key)
            assert other.status == self.mismatch_status, other
            self.expect_once(tag)
