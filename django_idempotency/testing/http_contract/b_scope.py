"""Section B, R19 to R23: whose key it is."""

from __future__ import annotations

from typing import Any

from django_idempotency.testing.http_contract.asking import Asking
from django_idempotency.testing.http_contract.declared import needs
from django_idempotency.testing.http_contract.wire import Answer


class ScopeRules(Asking):
    """R19 to R23."""

    @needs("alice", "bob")
    def test_R19_two_users_with_one_key_run_twice(self) -> None:
        alices, bobs, key = self.new(), self.new(), self.new()
        alices_first = self.created(self.create(alices), key)
        bobs_first = self.created(self.create_as_bob(bobs), key, user="bob")
        self.expect_replay(self.ask(self.create(alices), key), of=alices_first)
        self.expect_replay(self.ask(self.create_as_bob(bobs), key, user="bob"), of=bobs_first)
        assert (self.effects(alices), self.effects(bobs)) == (1, 1)

    @needs("alice_refreshed")
    def test_R20_a_refreshed_token_is_the_same_scope(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), key)
        again = self.ask(self.create(tag), key, user="alice_refreshed")
        self.expect_replay(again, of=first)
        self.expect_once(tag)

    @needs("unscoped")
    def test_R21_a_stranger_with_a_key_is_told_that_it_has_no_scope(self) -> None:
        tag, key = self.new(), self.new()
        answer = self.ask(self.unscoped(tag), key, user="nobody")
        self.expect_problem(answer, 400, "scope_missing")
        assert self.effects(tag) == 0

    @needs("alice", "bob")
    def test_R22_a_key_that_somebody_used_looks_like_any_other(self) -> None:
        alices, key = self.new(), self.new()
        self.created(self.create(alices), key)
        used = self.created(self.create_as_bob(self.new()), key, user="bob")
        fresh = self.created(self.create_as_bob(self.new()), self.new(), user="bob")
        assert _shape(used) == _shape(fresh)
        assert not used.tells(alices), used

    @needs("alice", "bob", "elsewhere")
    def test_R22_also_where_it_would_be_another_operation(self) -> None:
        key = self.new()
        self.created(self.elsewhere(self.new()), key)
        self.created(self.create_as_bob(self.new()), key, user="bob")

    @needs("elsewhere")
    def test_R23_one_key_on_two_endpoints_is_a_mismatch(self) -> None:
        tag, key = self.new(), self.new()
        first = self.created(self.create(tag), key)
        other = self.ask(self.elsewhere(tag), key)
        assert other.status == self.mismatch_status, other
        self.expect_replay(self.ask(self.create(tag), key), of=first)

    @needs("scoped_by_endpoint")
    def test_R23_scope_endpoint_keeps_them_apart(self) -> None:
        key = self.new()
        calls = self.scoped_by_endpoint(self.new())
        firsts = [self.created(call, key) for call in calls]
        for call, first in zip(calls, firsts, strict=True):
            self.expect_replay(self.ask(call, key), of=first)


def _shape(answer: Answer) -> tuple[Any, ...]:
    """Return what two answers have in common that differ in their values alone."""
    kind = answer.headers.get_content_type()
    members: Any = len(answer.body) > 0
    if kind == "application/json":
        members = _types(answer.json)
    return answer.status, kind, answer.names(), members


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _types(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_types(item) for item in value]
    return type(value)
