"""Section D, R37 to R48: when two requests with one key ask for the same thing."""

from __future__ import annotations

import json

from django_idempotency.testing.http_contract.asking import Asking
from django_idempotency.testing.http_contract.declared import needs
from django_idempotency.testing.http_contract.wire import JSON, Call

#: Values that are not the same, as they are written.
DIFFERENT = (
    ("9007199254740993", "9007199254740992"),
    ("1", "1.0"),
    ("1.0", "1.00"),
    ('"1"', "1"),
    ("[1, 2]", "[2, 1]"),
    ("null", '""'),
    ('{"a": null}', "{}"),
    ("true", "1"),
)


class FingerprintRules(Asking):
    """R37 to R48."""

    def same(self, one: Call, other: Call) -> None:
        """Fail unless the second call is the first one's duplicate."""
        key = self.new()
        first = self.created(one, key)
        self.expect_replay(self.ask(other, key), of=first)

    def different(self, one: Call, other: Call) -> None:
        """Fail unless the second call is a mismatch, and the first one's record is intact."""
        key = self.new()
        first = self.created(one, key)
        mismatch = self.ask(other, key)
        assert mismatch.status == self.mismatch_status, mismatch
        assert self.replay_header not in mismatch.headers, mismatch
        self.expect_replay(self.ask(one, key), of=first)

    def test_R37_other_body_is_a_mismatch(self) -> None:
        tag, others, key = self.new(), self.new(), self.new()
        first = self.created(self.create(tag), key)
        for _ in range(2):
            answer = self.ask(self.create(others), key)
            self.expect_problem(answer, self.mismatch_status, "idempotency_key_reused")
        self.expect_replay(self.ask(self.create(tag), key), of=first)
        assert (self.effects(tag), self.effects(others)) == (1, 0)

    @needs("held")
    def test_R38_mismatch_beats_in_progress(self) -> None:
        tag, key = self.new(), self.new()
        with self.in_flight(tag, self.held(tag), key) as flight:
            other = self.ask(self.held(self.new()), key)
            same = self.ask(self.held(tag), key)
            first = self.ended(tag, flight)
        assert other.status == self.mismatch_status, other
        assert self.is_in_progress(same), same
        self.expect_first(first)

    def test_R39_a_mismatch_tells_nothing_of_the_first(self) -> None:
        told, other = [], self.create(self.new())
        for _ in range(2):
            tag, key = self.new(), self.new()
            first = self.created(self.create(tag), key)
            answer = self.ask(other, key)
            assert answer.status == self.mismatch_status, answer
            assert not answer.tells(tag), answer
            assert first.body == b"" or first.body not in answer.body, answer
            told.append((answer.body, answer.names()))
        assert told[0] == told[1]

    @needs("held")
    def test_R39_a_refusal_meanwhile_tells_nothing_of_the_first(self) -> None:
        tag, key = self.new(), self.new()
        with self.in_flight(tag, self.held(tag), key) as flight:
            other = self.ask(self.held(self.new()), key)
        for answer in (flight.refused, other):
            assert not answer.is_success, answer
            assert not answer.tells(tag), answer

    def test_R40_query_counts(self) -> None:
        call = self.create(self.new())
        self.same(call.with_query("contract=1"), call.with_query("contract=1"))
        self.different(call.with_query("contract=1"), call.with_query("contract=2"))
        self.different(call, call.with_query("contract=1"))

    @needs("other_methods")
    def test_R40_method_counts(self) -> None:
        tag = self.new()
        for call in self.other_methods(tag):
            self.different(self.create(tag), call)

    @needs("addressed")
    def test_R40_path_arguments_count(self) -> None:
        self.different(*self.addressed(self.new()))

    def test_R41_another_key_is_another_operation(self) -> None:
        tag = self.new()
        first, second = (self.created(self.create(tag), self.new()) for _ in range(2))
        assert self.effects(tag) == 2
        assert first.status == second.status

    @needs("takes_json")
    def test_R42_json_is_compared_by_meaning(self) -> None:
        tag = self.new()
        call = self.create(tag)
        escaped = "".join(f"\\u{ord(character):04x}" for character in tag)
        self.same(call, call.but(body=json.dumps(_reversed(call.body))))
        self.same(call, call.but(body=json.dumps(call.body, indent=3, separators=(" , ", " : "))))
        self.same(call, call.but(body=json.dumps(call.body).replace(tag, escaped)))
        self.same(call, call.but(content_type=f"{JSON}; charset=utf-8"))

    @needs("takes_json", "free_member")
    def test_R42_json_is_compared_exactly(self) -> None:
        for one, other in DIFFERENT:
            tag = self.new()
            self.different(self.with_member(tag, one), self.with_member(tag, other))
        tag = self.new()
        self.different(self.with_member(tag, "null"), self.create(tag))

    @needs("takes_json", "free_member")
    def test_R42_a_member_that_stands_twice_is_compared_as_bytes(self) -> None:
        tag = self.new()
        twice = self.with_member(tag, f'1, "{self.free_member}": 2')
        self.same(twice, twice)
        self.different(twice, self.with_member(tag, "2"))
        self.different(twice, self.with_member(tag, f'1,  "{self.free_member}": 2'))

    def with_member(self, tag: str, value: str) -> Call:
        """Return the call of `create` with the free member, whose value is this text."""
        call = self.create(tag)
        text = json.dumps(call.body).removesuffix("}")
        return call.but(body=f'{text}, "{self.free_member}": {value}}}', content_type=JSON)

    @needs("compared_as_bytes")
    def test_R42_raw_compares_bytes(self) -> None:
        call = self.compared_as_bytes(self.new())
        self.same(call, call)
        self.different(call, call.but(body=json.dumps(call.body, indent=1)))

    @needs("uncompared")
    def test_R42_None_compares_no_bodies(self) -> None:
        call = self.uncompared(self.new())
        self.same(call, self.uncompared(self.new()))
        self.different(call, call.with_query("contract=1"))

    @needs("upload")
    def test_R43_a_new_boundary_is_the_same_request(self) -> None:
        tag, content = self.new(), b"\x00\xff" * 5000
        self.same(self.upload(tag, content, "one"), self.upload(tag, content, "another"))
        self.expect_once(tag)

    @needs("upload")
    def test_R43_a_changed_byte_is_another_request(self) -> None:
        tag, content = self.new(), b"\x00\xff" * 5000
        changed = b"\x01" + content[1:]
        self.different(self.upload(tag, content, "one"), self.upload(tag, changed, "one"))

    @needs("raw_upload")
    def test_R43_raw_uploads_are_compared_byte_by_byte(self) -> None:
        for size in (100, 4_000_000):
            tag, content = self.new(), b"\x00\xff" * (size // 2)
            changed = content[:-1] + b"\x01"
            self.same(self.raw_upload(tag, content), self.raw_upload(tag, content))
            self.different(self.raw_upload(tag, content), self.raw_upload(tag, changed))

    @needs("form")
    def test_R44_order_of_names_is_free_and_order_within_a_name_is_not(self) -> None:
        tag = self.new()

        def of(*pairs: str) -> Call:
            return self.form(tag, [(pair[0], pair[1]) for pair in pairs])

        first = of("a1", "a2", "b3")
        for equal in (of("b3", "a1", "a2"), of("a1", "b3", "a2")):
            self.same(first, equal)
        for other in (of("a2", "a1", "b3"), of("a1", "a2"), of("a1", "a2", "b4")):
            self.different(first, other)

    @needs("excluding")
    def test_R45_excluded_members_do_not_count(self) -> None:
        tag = self.new()
        self.same(self.excluding(tag, "one"), self.excluding(tag, "other"))
        self.different(self.excluding(tag, "one"), self.excluding(self.new(), "one"))

    @needs("comparing_a_header")
    def test_R45_named_header_fields_count(self) -> None:
        tag = self.new()
        one, other = (self.comparing_a_header(tag, value) for value in ("one", "other"))
        self.same(one, one)
        self.different(one, other)

    @needs("any_body")
    def test_R46_an_empty_body_is_not_an_empty_object(self) -> None:
        tag = self.new()
        self.different(self.any_body(tag, b""), self.any_body(tag, b"{}"))
        self.different(self.any_body(tag, b"{}"), self.any_body(tag, b""))

    @needs("takes_chunks")
    def test_R46_chunked_equals_sized(self) -> None:
        tag, key = self.new(), self.new()
        first = self.ask(self.create(tag), key, chunked=True)
        self.expect_first(first)
        self.expect_replay(self.ask(self.create(tag), key), of=first)
        other = self.ask(self.create(self.new()), key, chunked=True)
        assert other.status == self.mismatch_status, other
        self.expect_once(tag)

    @needs("mutating")
    def test_R48_a_view_that_changes_its_data_does_not_change_the_fingerprint(self) -> None:
        tag = self.new()
        self.same(self.mutating(tag), self.mutating(tag))
        self.different(self.mutating(tag), self.mutating(self.new()))


def _reversed(members: dict[str, object]) -> dict[str, object]:
    return dict(reversed(list(members.items())))
