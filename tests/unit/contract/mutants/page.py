"""docs/contributing/mutants.md, generated: ``python -m tests.unit.contract.mutants.page``."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

from tests.unit.contract.mutants import MUTANTS

__all__ = ["NOTICED", "PAGE", "page"]

PAGE = Path(__file__).resolve().parents[4] / "docs" / "contributing" / "mutants.md"
#: All rules that notice a mutant; written and checked by tests/proof/test_mutants.py.
NOTICED: dict[str, list[str]] = json.loads(
    (Path(__file__).resolve().parents[3] / "proof" / "mutants.json").read_text()
)

_HEAD = """# Mutants of a store

A contract that every store passes proves nothing unless it fails those that are wrong. So here are
{number} stores, each a memory store with one defect. The contract notices every one of them, by the
rule that is meant for it; the last column says how many other rules notice it, too. And each rule
that a single process can show notices some defect. The rules about several processes have defects
of [the store of the guide](../howto/writing-a-store.md) for that.

A rule's test is its text with underscores: "I2: epoch grows with each claim" is
`test_I2_epoch_grows_with_each_claim`. The page is generated from the defects. What it says is
proved by these tests:
`tests/unit/contract/test_mutants.py::test_mutant_is_noticed_by_the_rule_that_is_meant`,
`tests/proof/test_mutants.py::test_mutant_is_noticed_by_exactly_its_rules`,
`tests/unit/contract/test_mutants.py::test_every_rule_notices_something`,
`tests/acceptance/contract/test_file_store.py::test_defect_is_noticed_by_its_rule_about_processes`.
"""
_NUMBERS = re.compile(r"((?:[RI]\d+_)+)")


def page():
    """Return the page."""
    parts = [_HEAD.format(number=len(MUTANTS)).rstrip()]
    for module in dict.fromkeys(inspect.getmodule(mutant) for mutant in MUTANTS):
        title = module.__doc__.strip().rstrip(".").replace("Mutants that ", "Stores that ")
        parts += ["", f"## {title.replace('Mutants whose', 'Stores whose')}", ""]
        parts += ["| the defect | the rule that notices | others |", "|---|---|---|"]
        parts += [_row(mutant) for mutant in MUTANTS if inspect.getmodule(mutant) is module]
    return "\n".join(parts) + "\n"


def _row(mutant):
    others = len(NOTICED[mutant.__name__]) - 1 or ""
    return f"| {mutant.__doc__.strip()} | {_words(mutant.rule)} | {others} |"


def _words(rule):
    """Return the name of a rule to be read: its numbers, and what it says."""
    words = rule.removeprefix("test_")
    if match := _NUMBERS.match(words):
        numbers = match[1].rstrip("_").replace("_", ", ")
        return f"{numbers}: {words[match.end() :].replace('_', ' ')}"
    return words.replace("_", " ")


if __name__ == "__main__":
    PAGE.write_text(page())
