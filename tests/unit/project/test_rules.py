"""Each rule that has been built has a test that carries its number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules import COVERED, PARTS_TO_COME, RULES, count, rules_in, still_to_come


@pytest.fixture(scope="module")
def counted() -> dict[str, int]:
    return count()


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule in COVERED])
def test_every_rule_that_is_built_has_a_test(counted: dict[str, int], rule: str) -> None:
    assert counted[rule] >= 1, f"no test carries {rule}: {RULES[rule]}"


def test_no_test_carries_a_number_that_is_none(counted: dict[str, int]) -> None:
    assert counted.keys() <= RULES.keys()


def test_the_table_is_whole() -> None:
    numbers = {"R": 97, "C": 15, "I": 13}

    assert list(RULES) == [
        f"{letter}{number}" for letter, last in numbers.items() for number in range(1, last + 1)
    ]
    assert COVERED.isdisjoint(still_to_come())
    assert PARTS_TO_COME.keys() <= COVERED


def test_a_rule_counts_once_per_test() -> None:
    source = """
import pytest

class TestsOfR1:
    def test_R2_and_R2(self): ...

@pytest.mark.parametrize("x", [pytest.param(1, id="R3"), pytest.param("R4", id="five")])
@pytest.mark.parametrize("y", [1, 2], ids=["I13", "C1x"])
async def test_R5(x, y): ...

def support_R6(): ...
def test_XR7_R8x(): ...
"""

    assert sorted(rules_in(source)) == ["I13", "R2", "R3", "R5"]


def test_the_list_is_printed() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.rules"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    [line] = [line for line in result.stdout.splitlines() if line.startswith("  R37 ")]
    assert line.endswith("[gunicorn, uvicorn]")
    assert "(to come: signals)" in result.stdout
    assert " of 112 rules that are built have tests." in result.stdout
