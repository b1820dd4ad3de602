"""Each defective store is noticed by the rules that its page says, and by no other."""

from __future__ import annotations

import pytest

from tests.unit.contract.mutants import MUTANTS, Mutant
from tests.unit.contract.running import failures
from tests.unit.contract.test_mutants import contract_on


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_noticed_by_exactly_its_rules(mutant: type[Mutant]) -> None:
    assert set(failures(contract_on(mutant))) == {mutant.rule, *mutant.also}
