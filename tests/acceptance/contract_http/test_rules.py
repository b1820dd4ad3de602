"""Every rule is shown from outside, in process or under servers, or proved from inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.contract_http.rules import NOT_FROM_OUTSIDE, contracts, shown
from tests.acceptance.contract_http.served import NOT_UNDER
from tests.rules import RULES

ROOT = Path(__file__).parents[3]
HTTP = [rule for rule in RULES if rule.startswith("R")]


def test_each_rule_is_shown_by_make_test_and_again_under_servers() -> None:
    found = shown()

    assert set(found) == set(HTTP) - set(NOT_FROM_OUTSIDE)
    for rule, by_place in found.items():
        assert by_place["in proof"], rule
        assert by_place["in process"] or by_place["gunicorn"] or by_place["uvicorn"], rule


@pytest.mark.parametrize("rule", NOT_FROM_OUTSIDE)
def test_what_is_not_seen_from_outside_is_proved_from_inside(rule: str) -> None:
    path, _, name = NOT_FROM_OUTSIDE[rule].partition("::")

    assert rule in name.split("_")
    assert f"def {name}(" in (ROOT / path).read_text()


def test_every_test_of_the_contract_runs_in_make_test() -> None:
    here = [contract for contract in contracts() if ".proof." not in contract.__module__]

    assert set.intersection(*[set(contract.left_out()) for contract in here]) == set()


def test_what_a_server_cannot_show_is_a_test() -> None:
    names = {name for it in contracts() for tests in it.rules().values() for name in tests}

    assert names >= {name for reasons in NOT_UNDER.values() for name in reasons}
