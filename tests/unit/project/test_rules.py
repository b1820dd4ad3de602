"""Each rule has a test that carries its number, and each number is a rule's."""

from __future__ import annotations

from tests.pages import ROOT
from tests.rules import NUMBER, RULES, count, rules_in


def test_the_page_has_every_rule_and_every_rule_a_test():
    numbers = {"R": 97, "C": 15, "I": 13}

    assert list(RULES) == [f"{x}{n}" for x, last in numbers.items() for n in range(1, last + 1)]
    assert count().keys() == RULES.keys()


def test_every_number_in_code_and_docs_is_a_rule():
    sources = [*ROOT.glob("django_idempotency/**/*.py"), *ROOT.glob("docs/**/*.md")]
    found = {name: str(path) for path in sources for name in NUMBER.findall(path.read_text())}

    assert {name: path for name, path in found.items() if name not in RULES} == {}


def test_a_rule_counts_once_per_test():
    source = """
class TestsOfR1:
    def test_R2_and_R2(self): ...

@pytest.mark.parametrize("x", [pytest.param(1, id="R3"), pytest.param("R4", id="five")])
@pytest.mark.parametrize("y", [1, 2], ids=["I13", "C1x"])
async def test_R5(x, y): ...

def support_R6(): ...
def test_XR7_R8x(): ...
"""

    assert sorted(rules_in(source)) == ["I13", "R2", "R3", "R5"]
