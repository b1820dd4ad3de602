"""Which rules a contract runs, and what it says of the others."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Sequence
from typing import Any

import pytest

from django_idempotency.testing.http_contract import Call, HTTPContract
from django_idempotency.testing.http_contract.declared import Declared

RULE = "test_R2_without_a_key_it_runs_each_time"


class Least(HTTPContract):
    """Declares no more than it has to."""

    def create(self, tag: str) -> Call:
        return Call("/", {"name": tag})

    def effects(self, tag: str) -> int:
        return 0


class More(Least):
    def optional(self, tag: str) -> Call:
        return self.create(tag)


def test_a_rule_is_run_by_whoever_has_what_it_needs() -> None:
    assert "R2" not in Least.rules()
    assert More.rules()["R2"] == [RULE]


def test_a_rule_that_is_not_run_is_no_test() -> None:
    assert getattr(Least, RULE) is None
    assert callable(getattr(More, RULE))


def test_what_is_left_out_is_named_with_what_it_needs() -> None:
    assert Least.left_out()[RULE] == "needs optional"
    assert RULE not in More.left_out()


def test_every_test_is_run_or_left_out() -> None:
    tests = {name for name, _ in inspect.getmembers(HTTPContract) if name.startswith("test_R")}
    for contract in (Least, More):
        run = {name for names in contract.rules().values() for name in names}
        assert run | set(contract.left_out()) == tests
        assert not run & set(contract.left_out())


@pytest.mark.parametrize("given", [RULE, "R2"])
def test_a_contract_may_leave_out_a_test_or_a_rule_and_says_why(given: str) -> None:
    class Without(More):
        leaves_out = {given: "nobody sends none"}

    assert "R2" not in Without.rules()
    assert Without.left_out()[RULE] == "nobody sends none"
    assert f"{RULE}: nobody sends none" in Without.summary()


@pytest.mark.parametrize("given", ["R0", "R2_", "test_R2"])
def test_leaving_out_what_is_no_rule_is_an_error(given: str) -> None:
    with pytest.raises(TypeError, match="leaves out what is no rule"):

        class Wrong(More):
            leaves_out = {given: "a typing error"}


def test_a_subclass_runs_again_what_its_base_left_out() -> None:
    class Without(More):
        leaves_out = {"R2": "not yet"}

    class Again(Without):
        leaves_out = {}

    assert Again.rules()["R2"] == [RULE]


def test_a_test_of_ones_own_takes_the_place_of_a_rule() -> None:
    class Own(More):
        def test_R2_without_a_key_it_runs_each_time(self) -> None:
            self.asked = True

    class Further(Own):
        pass

    for contract in (Own(), Further()):
        contract.test_R2_without_a_key_it_runs_each_time()
        assert contract.asked


def test_None_in_the_place_of_a_rule_leaves_it_out() -> None:
    class Without(More):
        test_R2_without_a_key_it_runs_each_time = None  # type: ignore[assignment]

    assert Without.left_out()[RULE] == "is None"


def test_summary_names_the_rules_that_are_run() -> None:
    said = More.summary()

    assert said.startswith("More runs ")
    assert "R1, R2, R3" in said
    assert "test_R16_echo_key_returns_the_key: needs echoing" in said


def test_unittest_loads_the_rules_that_are_run() -> None:
    class AsTestCase(More, unittest.TestCase):
        pass

    names = unittest.defaultTestLoader.getTestCaseNames(AsTestCase)

    assert RULE in names
    assert "test_R16_echo_key_returns_the_key" not in names
    assert set(names) == {name for tests in More.rules().values() for name in tests}


def test_rules_run_in_the_order_of_their_numbers() -> None:
    numbers = [int(name[6:].split("_")[0]) for name in vars(More) if name.startswith("test_R")]

    assert numbers == sorted(numbers)


def test_each_thing_that_may_be_declared_is_needed_by_a_rule() -> None:
    optional = {
        name for name, value in vars(Declared).items() if getattr(value, "_undeclared", False)
    }
    needed: set[str] = set()
    for name, test in inspect.getmembers(EverythingDeclared):
        if name.startswith("test_R"):
            needed |= set(getattr(test, "_needs", ()))

    assert optional <= needed
    assert all(hasattr(Declared, name) for name in needed)


def _answered(self: Any, *arguments: Any) -> Sequence[Any]:
    return ()


EverythingDeclared: type[HTTPContract] = type(
    "EverythingDeclared",
    (Least,),
    {
        **{n: _answered for n, v in vars(Declared).items() if getattr(v, "_undeclared", False)},
        **{n: {} for n in ("alice", "bob", "alice_refreshed", "alice_forbidden")},
        "alice_throttled": {},
        "takes_chunks": True,
        "atomic_requests": True,
        "rolls_back": True,
        "free_member": "any",
        "other_media_type": "text/html",
        "lease": 1,
    },
)


def test_whoever_declares_everything_runs_everything() -> None:
    assert EverythingDeclared.left_out() == {}
