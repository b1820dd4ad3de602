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


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items(), ids=DEFAULTS.keys())
def test_default(name, value):
    assert getattr(Policy(), name) == value


@pytest.mark.parametrize(("name", "value"), HTTP_DEFAULTS.items(), ids=HTTP_DEFAULTS.keys())
def test_default_of_http(name, value):
    assert getattr(HTTPPolicy(), name) == value


def test_every_field_has_its_default_listed_here():
    assert {field.name for field in dataclasses.fields(Policy)} == set(DEFAULTS)
    http = {field.name for field in dataclasses.fields(HTTPPolicy)}
    assert http - {"documentation_url"} == set(HTTP_DEFAULTS)


def test_defaults_have_no_problems():
    assert Policy().problems() == []
    assert HTTPPolicy().problems() == []


@pytest.mark.parametrize("name", ["lease", "retention", "max_duration"])
@pytest.mark.parametrize("value", [90, 90.0, timedelta(seconds=90)])
def test_durations_are_seconds_or_timedelta(name, value):
    assert getattr(Policy(**{name: value}), name) == timedelta(seconds=90)


@pytest.mark.parametrize("value", ["one", b"one", ["one"], ("one",)])
def test_one_secret_may_stand_alone(value):
    [secret] = Policy(fingerprint_secrets=value).fingerprint_secrets
    assert secret in ("one", b"one")


def test_methods_are_upper_case_and_hashable():
    assert HTTPPolicy(methods=["post", "Put"]).methods == frozenset({"POST", "PUT"})


def test_policies_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().lease = timedelta(1)


class TestMerge:
    def test_changes_what_is_given_and_nothing_else(self):
        merged = merge(Policy(retention=5), {"lease": 7})
        assert merged == Policy(retention=5, lease=7)

    def test_UNSET_leaves_the_level_below(self):
        assert merge(Policy(lease=7), {"lease": UNSET}).lease == timedelta(seconds=7)

    def test_None_is_a_value(self):
        assert merge(Policy(transaction="single"), {"transaction": None}).transaction is None
        assert merge(HTTPPolicy(), {"replay_header": None}).replay_header is None

    def test_nothing_given_is_the_policy_itself(self):
        policy = Policy()
        assert merge(policy, {}) is policy
        assert merge(policy, {"lease": UNSET}) is policy

    def test_does_not_change_the_policy_below(self):
        policy = Policy()
        merge(policy, {"lease": 7})
        assert policy == Policy()

    @pytest.mark.parametrize(
        ("policy", "name", "nearest"),
        [
            (Policy(), "leese", "lease"),
            (Policy(), "retencion", "retention"),
            (Policy(), "LEASE", "lease"),
            (HTTPPolicy(), "requierd", "required"),
            (HTTPPolicy(), "strict_headers", "strict_header"),
        ],
    )
    def test_unknown_name_with_a_suggestion(self, policy, name, nearest):
        with pytest.raises(UnknownField, match=f"Did you mean '{nearest}'"):
            merge(policy, {name: 1})

    def test_unknown_name_far_from_all(self):
        with pytest.raises(UnknownField) as caught:
            merge(Policy(), {"zzz": 1})
        assert "'zzz' is not a field of Policy." in str(caught.value)
        assert "mean" not in str(caught.value)

    def test_an_unknown_name_is_a_TypeError_like_any_unknown_argument(self):
        assert issubclass(UnknownField, TypeError)

    def test_values_that_cannot_be_are_a_ValueError_with_all_problems(self):
        with pytest.raises(ValueError, match=r"lease.*on_stale"):
            merge(Policy(), {"lease": 0, "on_stale": "panic"})


PROBLEMS = {
    "lease of zero": {"lease": 0},
    "lease below zero": {"lease": -1},
    "lease of a str": {"lease": "60"},
    "lease of a bool": {"lease": True},
    "lease without end": {"lease": float("inf")},
    "lease beyond all bounds": {"lease": 10**20},
    "lease that is no number": {"lease": float("nan")},
    "no lease": {"lease": None},
    "retention of zero": {"retention": 0},
    "max_duration of zero": {"max_duration": timedelta(0)},
    "transaction": {"transaction": "join"},
    "transaction of another type": {"transaction": True},
    "on_stale": {"on_stale": "takeover"},
    "on_stale with single": {"on_stale": "refuse", "transaction": "single"},
    "renew": {"renew": "yes"},
    "no renew": {"renew": None},
    "max_result_bytes below zero": {"max_result_bytes": -1},
    "max_result_bytes of a float": {"max_result_bytes": 1e6},
    "max_result_bytes of a bool": {"max_result_bytes": True},
    "empty secret": {"fingerprint_secrets": ["a", ""]},
    "secret of another type": {"fingerprint_secrets": [1]},
}
HTTP_PROBLEMS = {
    "safe method": {"methods": {"GET"}},
    "unknown method": {"methods": ["POSTT"]},
    "methods of a str": {"methods": "POST"},
    "no header": {"header": ""},
    "header of another type": {"header": 5},
    "required": {"required": 1},
    "scope_endpoint": {"scope_endpoint": "yes"},
    "strict_header": {"strict_header": None},
    "echo_key": {"echo_key": 0},
    "keep": {"keep": "all"},
    "keep of another type": {"keep": 5},
    "no keep": {"keep": None},
    "key_validator": {"key_validator": "uuid4"},
    "key_validator of another type": {"key_validator": 5},
    "fingerprint of another type": {"fingerprint": 5},
    "key_min_length": {"key_min_length": 0},
    "key_max_length": {"key_max_length": 256},
    "key_max_length of a float": {"key_max_length": 10.0},
    "lengths crossed": {"key_min_length": 20, "key_max_length": 10},
    "no room for a UUID": {"key_validator": "uuid", "key_max_length": 35},
    "nothing as short as a UUID": {"key_validator": "uuid7", "key_min_length": 37},
    "in_progress_status": {"in_progress_status": 200},
    "mismatch_status": {"mismatch_status": 500},
    "status of a str": {"mismatch_status": "422"},
    "scope of another type": {"scope": 5},
    "error_renderer of another type": {"error_renderer": 5},
    "replay_check of another type": {"replay_check": 5},
    "replay_header of another type": {"replay_header": 5},
    "documentation_url of another type": {"documentation_url": None},
}


@pytest.mark.parametrize("values", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_problem(values):
    [problem] = Policy(**values).problems()
    assert next(iter(values)) in problem
    with pytest.raises(ValueError, match=next(iter(values))):
        merge(Policy(), values)


@pytest.mark.parametrize("values", HTTP_PROBLEMS.values(), ids=HTTP_PROBLEMS.keys())
def test_problem_of_http(values):
    [problem] = HTTPPolicy(**values).problems()
    assert next(iter(values)) in problem
    with pytest.raises(ValueError, match=next(iter(values))):
        merge(HTTPPolicy(), values)


@pytest.mark.parametrize(
    ("values", "nearest"),
    [
        ({"transaction": "join"}, "joined"),
        ({"transaction": "seperate"}, "separate"),
        ({"on_stale": "takeover"}, "take_over"),
    ],
)
def test_problem_with_the_nearest_choice(values, nearest):
    [problem] = Policy(**values).problems()
    assert f"Did you mean '{nearest}'?" in problem


@pytest.mark.parametrize("preset", ["default", "success"])
def test_R56_presets_are_known(preset):
    assert HTTPPolicy(keep=preset).problems() == []


def test_UNSET_is_false_and_says_its_name():
    assert not UNSET
    assert repr(UNSET) == "UNSET"
