"""Which rules a contract runs, and what it says of the others."""

from __future__ import annotations

import inspect
import unittest

import pytest

from django_idempotency.testing.http_contract import Call, HTTPContract
from django_idempotency.testing.http_contract.declared import Declared

RULE = "test_R2_without_a_key_it_runs_each_time"


class Least(HTTPContract):
    """Declares no more than it has to."""

    def create(self, tag):
        return Call("/", {"name": tag})

    def effects(self, tag):
        return 0


More = type("More", (Least,), {"optional": Least.create})
OPTIONAL = {name for name, value in vars(Declared).items() if getattr(value, "_undeclared", False)}
EverythingDeclared = type(
    "EverythingDeclared",
    (Least,),
    {
        **{name: lambda self, *arguments: () for name in OPTIONAL},
        **{name: {} for name in ("alice", "bob", "alice_refreshed", "alice_forbidden")},
        **dict.fromkeys(("takes_chunks", "atomic_requests", "rolls_back"), True),
        "alice_throttled": {},
        "free_member": "any",
        "other_media_type": "text/html",
        "lease": 1,
    },
)


def test_a_rule_is_run_by_whoever_has_what_it_needs_and_each_test_is_run_or_left_out():
    assert (getattr(Least, RULE), Least.left_out()[RULE]) == (None, "needs optional")
    assert More.rules()["R2"] == [RULE]
    tests = {name for name, _ in inspect.getmembers(HTTPContract) if name.startswith("test_R")}
    for contract in (Least, More):
        run = [name for names in contract.rules().values() for name in names]
        assert sorted([*run, *contract.left_out()]) == sorted(tests)
    assert EverythingDeclared.left_out() == {}


@pytest.mark.parametrize("given", [RULE, "R2"])
def test_a_contract_may_leave_out_a_test_or_a_rule_and_a_subclass_run_it_again(given):
    without = type("Without", (More,), {"leaves_out": {given: "nobody sends none"}})

    assert "R2" not in without.rules()
    assert f"{RULE}: nobody sends none" in without.summary()
    assert type("Again", (without,), {"leaves_out": {}}).rules()["R2"] == [RULE]


@pytest.mark.parametrize("given", ["R0", "test_R2"])
def test_leaving_out_what_is_no_rule_is_an_error(given):
    with pytest.raises(TypeError, match="leaves out what is no rule"):
        type("Wrong", (More,), {"leaves_out": {given: "a typing error"}})


def test_a_test_of_ones_own_takes_the_place_of_a_rule_and_None_leaves_it_out():
    own = type("Own", (More,), {RULE: lambda self: "asked"})
    further, without = type("Further", (own,), {}), type("Without", (More,), {RULE: None})

    assert [getattr(contract(), RULE)() for contract in (own, further)] == ["asked", "asked"]
    assert without.left_out()[RULE] == "is None"


def test_rules_are_named_run_and_loaded_by_unittest_in_the_order_of_their_numbers():
    case = type("AsTestCase", (More, unittest.TestCase), {})
    run = [name for name in vars(More) if name.startswith("test_R") and getattr(More, name)]

    assert More.summary().startswith("More runs ")
    assert "R1, R2, R3" in More.summary()
    assert run == sorted(run, key=lambda name: int(name[6:].split("_")[0]))
    assert set(unittest.defaultTestLoader.getTestCaseNames(case)) == set(run)


def test_each_thing_that_may_be_declared_is_needed_by_a_rule():
    tests = [test for name, test in inspect.getmembers(EverythingDeclared) if "test_R" in name]

    assert {need for test in tests for need in getattr(test, "_needs", ())} >= OPTIONAL
