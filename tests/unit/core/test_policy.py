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


def test_fields_take_their_values_in_several_forms():
    for name in ("lease", "retention", "max_duration"):
        given = [90, 90.0, timedelta(seconds=90)]
        assert {getattr(Policy(**{name: it}), name) for it in given} == {timedelta(seconds=90)}
    secrets = ["one", b"one", ["one"], ("one",)]
    found = [Policy(fingerprint_secrets=value).fingerprint_secrets for value in secrets]
    assert found == [("one",), (b"one",), ("one",), ("one",)]
    assert HTTPPolicy(methods=["post", "Put"]).methods == frozenset({"POST", "PUT"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().lease = timedelta(1)


def test_merge_changes_what_is_given_and_not_the_policy_below():
    below = Policy(retention=5, transaction="single")
    given = {"lease": 7, "wait": UNSET, "transaction": None}  # None is a value
    assert merge(below, given) == Policy(retention=5, lease=7)
    assert below == Policy(retention=5, transaction="single")
    assert merge(HTTPPolicy(), {"replay_header": None}).replay_header is None
    assert merge(below, {}) is merge(below, {"lease": UNSET}) is below
    assert (bool(UNSET), repr(UNSET)) == (False, "UNSET")


def test_merge_of_what_cannot_be_is_told_with_a_suggestion():
    assert issubclass(UnknownField, TypeError)
    http = (HTTPPolicy(), "requierd", "required")
    for policy, name, nearest in ((Policy(), "leese", "lease"), (Policy(), "LEASE", "lease"), http):
        with pytest.raises(UnknownField, match=f"Did you mean '{nearest}'"):
            merge(policy, {name: 1})
    with pytest.raises(UnknownField, match=r"^'zzz' is not a field of Policy\.$"):
        merge(Policy(), {"zzz": 1})
    with pytest.raises(ValueError, match=r"lease.*on_stale"):
        merge(Policy(), {"lease": 0, "on_stale": "panic"})


#: What each field cannot be; of several fields together, the first one is named.
DURATIONS = (0, -1, "60", True, None, float("inf"), float("nan"), 10**20)
PROBLEMS = [
    *({"lease": lease} for lease in DURATIONS),
    *({"retention": 0}, {"max_duration": timedelta(0)}, {"on_stale": "takeover"}),
    *({"transaction": mode} for mode in ("join", True)),
    {"on_stale": "refuse", "transaction": "single"},
    *({"renew": renew} for renew in ("yes", None)),
    *({"max_result_bytes": size} for size in (-1, 1e6, True)),
    *({"fingerprint_secrets": secrets} for secrets in (["a", ""], [1])),
]
HTTP_PROBLEMS = [
    *({"methods": methods} for methods in ({"GET"}, ["POSTT"], "POST")),
    *({"header": header} for header in ("", 5)),
    *({"required": 1}, {"scope_endpoint": "yes"}, {"strict_header": None}, {"echo_key": 0}),
    *({"keep": keep} for keep in ("all", 5, None)),
    *({"key_validator": validator} for validator in ("uuid4", 5)),
    *({"fingerprint": 5}, {"key_min_length": 0}, {"key_max_length": 256}),
    *({"key_max_length": 10.0}, {"key_min_length": 20, "key_max_length": 10}),
    {"key_validator": "uuid", "key_max_length": 35},
    {"key_validator": "uuid7", "key_min_length": 37},
    *({"in_progress_status": 200}, {"mismatch_status": 500}, {"mismatch_status": "422"}),
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
