"""Each rule has a test that carries its number, and each number is a rule's."""

from __future__ import annotations

from tests.pages import ROOT
from tests.rules import NUMBER, RULES, count


def test_the_page_has_every_rule_and_every_rule_a_test():
    numbers = {"R": 98, "C": 16, "S": 19, "T": 18, "I": 13}

    assert list(RULES) == [f"{x}{n}" for x, last in numbers.items() for n in range(1, last + 1)]
    assert count().keys() == RULES.keys()


def test_every_number_in_code_and_docs_is_a_rule():
    sources = [*ROOT.glob("django_idempotency/**/*.py"), *ROOT.glob("docs/**/*.md")]
    found = {name: str(path) for path in sources for name in NUMBER.findall(path.read_text())}

    assert {name: path for name, path in found.items() if name not in RULES} == {}
