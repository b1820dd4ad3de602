"""Each rule has a test that carries its number, and each number is a rule's."""

from __future__ import annotations

from tests.pages import ROOT
from tests.rules import NUMBER, RULES, count, rules_in


def test_the_page_has_every_rule() -> None:
    numbers = {"R": 97, "C": 15, "I": 13}

    assert list(RULES) == [
        f"{letter}{number}" for letter, last in numbers.items() for number in range(1, last + 1)
    ]


def test_every_rule_has_a_test_and_no_test_another_number() -> None:
    assert count().keys() == RULES.keys()


def test_every_number_in_code_and_docs_is_a_rule() -> None:
    sources = [*ROOT.glob("django_idempotency/**/*.py"), *ROOT.glob("docs/**/*.md")]
    unknown = {
        (str(path.relative_to(ROOT)), number)
        for path in sources
        for number in NUMBER.findall(path.read_text())
        if number not in RULES
    }

    assert unknown == set()


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
