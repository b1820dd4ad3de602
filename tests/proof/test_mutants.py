"""
Each defective store is noticed by the rules that its page says, and by no other.

``python -m tests.proof.test_mutants`` writes anew which rules notice; then write the page.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from tests.unit.contract.mutants import MUTANTS, Mutant
from tests.unit.contract.mutants.page import NOTICED
from tests.unit.contract.running import failures
from tests.unit.contract.test_mutants import contract_on


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_noticed_by_exactly_its_rules(mutant: type[Mutant]) -> None:
    assert sorted(failures(contract_on(mutant))) == NOTICED[mutant.__name__]
    assert mutant.rule in NOTICED[mutant.__name__]


if __name__ == "__main__":
    rows = {mutant.__name__: sorted(failures(contract_on(mutant))) for mutant in MUTANTS}
    lines = [f"{json.dumps(name)}: {json.dumps(rules)}" for name, rules in rows.items()]
    Path(__file__).with_name("mutants.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
