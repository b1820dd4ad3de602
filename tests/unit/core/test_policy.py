"""Policies: their defaults, merging, and what is wrong with them."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from django_idempotency.policy import UNSET, HTTPPolicy, Policy, UnknownField, merge

DEFAULTS = {
    "lease": timedelta(seconds=60),
    "retention": timedelta(hours=24),
    "wait": timedelta(0),
    "renew": True,
    "max_duration": timedelta(hours=1),
    "transaction": None,
    "on_stale": "take_over",
    "max_result_bytes": 1024 * 1024,
    "deadline": None,
    "fingerprint_secrets": (),
}
HTTP_DEFAULTS = {
    "header": "Idempotency-Key",
    "required": False,
    "methods": None,
    "form_field": "idempotency_key",
    "scope": None,
    "scope_endpoint": False,
    "fingerprint": "json",
    "fingerprint_exclude": (),
    "fingerprint_headers": (),
    "key_validator": None,
    "key_min_length": 1,
    "key_max_length": 255,
    "strict_header": False,
    "keep": "default",
    "replay_header": "Idempotency-Replayed",
    "replay_headers": (),
    "echo_key": False,
    "in_progress_status": 409,
    "mismatch_status": 422,
    "error_renderer": None,
    "fail_open": False,
    "replay_check": None,
}


def test_defaults_are_these_and_have_no_problems():
    http = dataclasses.asdict(HTTPPolicy())
    assert http.pop("documentation_url")
    assert dataclasses.asdict(Policy()) == DEFAULTS
    assert http == HTTP_DEFAULTS
    assert Policy().problems() == HTTPPolicy().problems() == []


@pytest.mark.parametrize("name", ["lease", "retention", "max_duration"])
def test_durations_are_seconds_or_timedelta(name):
    given = [90, 90.0, timedelta(seconds=90)]
    assert {getattr(Policy(**{name: value}), name) for value in given} == {timedelta(seconds=90)}


def test_one_secret_may_stand_alone():
    given = ["one", b"one", ["one"], ("one",)]
    found = [Policy(fingerprint_secrets=value).fingerprint_secrets for value in given]
    assert found == [("one",), (b"one",), ("one",), ("one",)]


def test_methods_are_upper_case_and_hashable():
    assert HTTPPolicy(methods=["post", "Put"]).methods == frozenset({"POST", "PUT"})


def test_policies_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().lease = timedelta(1)


class TestMerge:
    def test_changes_what_is_given_and_not_the_policy_below(self):
        below = Policy(retention=5)
        assert merge(below, {"lease": 7, "wait": UNSET}) == Policy(retention=5, lease=7)
        assert below == Policy(retention=5)

    def test_None_is_a_value(self):
        assert merge(Policy(transaction="single"), {"transaction": None}).transaction is None
        assert merge(HTTPPolicy(), {"replay_header": None}).replay_header is None

    def test_nothing_given_is_the_policy_itself(self):
        policy = Policy()
        assert merge(policy, {}) is merge(policy, {"lease": UNSET}) is policy

    @pytest.mark.parametrize(
        ("policy", "name", "nearest"),
        [
            (Policy(), "leese", "lease"),
            (Policy(), "LEASE", "lease"),
            (HTTPPolicy(), "requierd", "required"),
        ],
    )
    def test_unknown_name_is_a_TypeError_with_a_suggestion(self, policy, name, nearest):
        assert issubclass(UnknownField, TypeError)
        with pytest.raises(UnknownField, match=f"Did you mean '{nearest}'"):
            merge(policy, {name: 1})

    def test_unknown_name_far_from_all(self):
        with pytest.raises(UnknownField, match=r"^'zzz' is not a field of Policy\.$"):
            merge(Policy(), {"zzz": 1})

    def test_values_that_cannot_be_are_a_ValueError_with_all_problems(self):
        with pytest.raises(ValueError, match=r"lease.*on_stale"):
            merge(Policy(), {"lease": 0, "on_stale": "panic"})


#: What each field cannot be; of several fields together, the first one is named.
PROBLEMS = [
    *({"lease": lease} for lease in (0, -1, "60", True, None)),
    *({"lease": lease} for lease in (float("inf"), float("nan"), 10**20)),
    {"retention": 0},
    {"max_duration": timedelta(0)},
    {"transaction": "join"},
    {"transaction": True},
    {"on_stale": "takeover"},
    {"on_stale": "refuse", "transaction": "single"},
    {"renew": "yes"},
    {"renew": None},
    *({"max_result_bytes": size} for size in (-1, 1e6, True)),
    {"fingerprint_secrets": ["a", ""]},
    {"fingerprint_secrets": [1]},
]
HTTP_PROBLEMS = [
    *({"methods": methods} for methods in ({"GET"}, ["POSTT"], "POST")),
    {"header": ""},
    {"header": 5},
    {"required": 1},
    {"scope_endpoint": "yes"},
    {"strict_header": None},
    {"echo_key": 0},
    *({"keep": keep} for keep in ("all", 5, None)),
    {"key_validator": "uuid4"},
    {"key_validator": 5},
    {"fingerprint": 5},
    {"key_min_length": 0},
    {"key_max_length": 256},
    {"key_max_length": 10.0},
    {"key_min_length": 20, "key_max_length": 10},
    {"key_validator": "uuid", "key_max_length": 35},
    {"key_validator": "uuid7", "key_min_length": 37},
    {"in_progress_status": 200},
    {"mismatch_status": 500},
    {"mismatch_status": "422"},
    *({name: 5} for name in ("scope", "error_renderer", "replay_check", "replay_header")),
    {"documentation_url": None},
]


@pytest.mark.parametrize(("policy", "problems"), [(Policy, PROBLEMS), (HTTPPolicy, HTTP_PROBLEMS)])
def test_problem_names_its_field_and_keeps_the_policy_from_being_made(policy, problems):
    for values in problems:
        [problem] = policy(**values).problems()
        assert next(iter(values)) in problem
        with pytest.raises(ValueError, match=next(iter(values))):
            merge(policy(), values)


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [("transaction", "seperate", "separate"), ("on_stale", "takeover", "take_over")],
)
def test_problem_with_the_nearest_choice(name, value, nearest):
    [problem] = Policy(**{name: value}).problems()
    assert f"Did you mean '{nearest}'?" in problem


def test_R56_presets_are_known():
    assert [HTTPPolicy(keep=preset).problems() for preset in ("default", "success")] == [[], []]


def test_UNSET_is_false_and_says_its_name():
    assert not UNSET
    assert repr(UNSET) == "UNSET"
