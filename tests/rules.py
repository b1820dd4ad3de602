"""
How many tests each rule has: ``python -m tests.rules``.

The rules stand in docs/reference/rules.md. A test carries its rules in its name
(``test_R37_other_body_is_422``) or in the id of a parameter; those of the contracts count, too.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

__all__ = ["NUMBER", "RULES", "count", "rules_in"]

_TESTS = Path(__file__).parent
PAGE = _TESTS.parent / "docs" / "reference" / "rules.md"
_TITLE = re.compile(r"^\*\*([RCSTI][0-9]+) · (.+?)\.\*\*", re.MULTILINE | re.DOTALL)
#: Number and title of each rule, in the order of the page.
RULES: dict[str, str] = dict(_TITLE.findall(PAGE.read_text()))

_TEST = re.compile(r"^ *(?:async )?def (test\w*)", re.MULTILINE)
_ID = re.compile(r"\bids?=(\[[^]]*\]|\"[^\"]*\")")
NUMBER = re.compile(r"(?<![A-Za-z0-9])[RCSTI][1-9][0-9]?(?![A-Za-z0-9])")


def count():
    """Return how many tests of the suite carry each rule's number."""
    contracts = _TESTS.parent / "django_idempotency" / "testing"
    paths = [*_TESTS.rglob("test_*.py"), *contracts.rglob("*.py")]
    return Counter(rule for path in paths for rule in rules_in(path.read_text()))


def rules_in(source):
    """Yield the rules of each test in `source`, a rule once per test."""
    for test in _TEST.finditer(source):
        decorators = source[: test.start()].rpartition("\n\n")[2]
        names = [test[1], *_ID.findall(decorators)]
        yield from sorted(set(NUMBER.findall(" ".join(names))))


def main() -> None:
    """Print the rules with the number of their tests."""
    from tests.acceptance.contract_http.rules import shown  # which imports RULES

    found, on_servers = count(), shown()
    for rule, title in RULES.items():
        outside = f"  [from outside: {len(on_servers[rule])}]" if rule in on_servers else ""
        print(f"{rule:4}{found[rule]:4}  {title}{outside}")
    missing = [rule for rule in RULES if not found[rule]]
    print(f"{len(RULES) - len(missing)} of {len(RULES)} rules have tests.")
    if missing:
        print(f"Without a test: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
