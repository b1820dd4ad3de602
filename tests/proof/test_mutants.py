"""
Each defective store is noticed by the rules that its page says, and by no other.

``python -m tests.proof.test_mutants`` writes anew which rules notice; then write the page.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from tests.unit.contract.mutants import MUTANTS, NOTICED, Mutant
from tests.unit.contract.running import failures
from tests.unit.contract.test_mutants import contract_on


def noticed(mutant: Any) -> list[str]:
    return sorted(failures(contract_on(mutant.store_class(), **mutant.contract)))


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_is_noticed_by_exactly_its_rules(mutant: Mutant) -> None:
    assert noticed(mutant) == NOTICED[str(mutant)]
    assert mutant.rule in NOTICED[str(mutant)]


if __name__ == "__main__":
    lines = [f"{json.dumps(str(mutant))}: {json.dumps(noticed(mutant))}" for mutant in MUTANTS]
    Path(__file__).with_name("mutants.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
