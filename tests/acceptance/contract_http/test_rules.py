"""Every rule that can be seen from outside is shown by `make test`, and again under servers."""

from __future__ import annotations

from tests.acceptance.contract_http.rules import NOT_FROM_OUTSIDE, contracts, shown
from tests.acceptance.contract_http.served import NOT_UNDER
from tests.rules import RULES


def test_each_rule_is_shown_by_make_test_and_again_under_servers() -> None:
    found = shown()

    assert set(found) == {rule for rule in RULES if rule[0] == "R"} - NOT_FROM_OUTSIDE
    for rule, names in found.items():
        assert {".proof." in name for name in names} == {True, False}, rule


def test_every_test_of_the_contract_runs_in_make_test() -> None:
    here = [contract for contract in contracts() if ".proof." not in contract.__module__]

    assert set.intersection(*[set(contract.left_out()) for contract in here]) == set()


def test_what_a_server_cannot_show_is_a_test() -> None:
    names = {name for it in contracts() for tests in it.rules().values() for name in tests}

    assert names >= {name for reasons in NOT_UNDER.values() for name in reasons}
