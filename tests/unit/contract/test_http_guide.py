"""The guide to the contract: its example holds, and it names all that can be declared."""

from __future__ import annotations

import re
import unittest
from types import ModuleType

import pytest
from django.contrib.auth.models import User

from django_idempotency.testing.http_contract.declared import Declared
from tests.pages import DOCS, table_of
from tests.unit.contract.test_http_selection import EverythingDeclared
from tests.unit.project.conftest import run_page  # noqa: F401

GUIDE = DOCS / "howto/contract-http.md"


@pytest.mark.django_db(transaction=True)
def test_the_example_holds_for_the_quickstart(run_page, settings):  # noqa: F811
    urls = ModuleType("shop.urls")
    urls.urlpatterns = run_page("docs/quickstart.md").urlpatterns
    page = run_page(f"docs/howto/{GUIDE.name}")
    settings.ROOT_URLCONF = urls
    for name in ("alice", "bob"):
        User.objects.create_user(name, password="secret")
    bases = (page.TestMoreOfPayments, unittest.TestCase)
    case = type("Case", bases, {"transport": page.TestInProcess.transport})
    names = unittest.defaultTestLoader.getTestCaseNames(case)
    assert len(names) >= 40
    result = unittest.TestResult()

    # One of each group here; whoever copies the example runs them all.
    few = re.compile("test_R(1|4|19|25|37|49|55|77|78)_")
    unittest.TestSuite(case(name) for name in names if few.match(name)).run(result)

    assert [text for _, text in [*result.errors, *result.failures]] == []
    assert result.skipped == []
    assert result.testsRun >= 7


def test_the_tables_name_all_that_can_be_declared():
    rows = [*table_of(GUIDE, "## Say what there is"), *table_of(GUIDE, "## Declare more")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)(?:\(\w+\))?`", row[0])}

    assert documented == {n for n in vars(Declared) if not n.startswith("_")} - {"nobody"}


def test_the_rules_in_the_table_need_what_stands_beside_them():
    by_rule = EverythingDeclared.rules()
    for names, rules, *_ in table_of(GUIDE, "## Declare more"):
        declared = set(re.findall(r"`(\w+)`", names))
        numbers = {int(number) for number in re.findall(r"R(\d+)", rules)}
        for first, last in re.findall(r"R(\d+) to R(\d+)", rules):
            numbers |= set(range(int(first), int(last) + 1)) & {int(r[1:]) for r in by_rule}
        for number in numbers:
            tests = [getattr(EverythingDeclared, test) for test in by_rule[f"R{number}"]]
            needs = {need for test in tests for need in getattr(test, "_needs", ())}
            assert needs & declared or declared & {"replay_headers", "let_go"}, (number, names)
