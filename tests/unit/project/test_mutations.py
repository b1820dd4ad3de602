"""The mutations of `make proof` fit the source as it is; make proof shows that they are found."""

from __future__ import annotations

import ast

from tests.proof.mutations import every_mutation
from tests.services.processes import ROOT

MUTATIONS = list(every_mutation())


def test_each_mutation_changes_one_place_of_the_source() -> None:
    texts = {m.file: (ROOT / "django_idempotency" / m.file).read_text() for m in MUTATIONS}
    counts = {f"{m.area}: {m.what}": texts[m.file].count(m.old) for m in MUTATIONS}
    assert {what: count for what, count in counts.items() if count != 1} == {}
    assert len(counts) == len(MUTATIONS) > 300
    assert [m.what for m in MUTATIONS if m.old == m.new] == []
    for mutation in MUTATIONS:  # a test that cannot import the source would find anything
        ast.parse(texts[mutation.file].replace(mutation.old, mutation.new), mutation.what)


def test_each_mutation_names_a_test_that_is_there() -> None:
    files = {m.test.split()[0].partition("::")[0] for m in MUTATIONS}
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_each_defect_between_features_stands_in_the_table_of_the_documentation() -> None:
    page = (ROOT / "docs/contributing/proof.md").read_text()
    rows = page.partition("## What the generated pairs find")[2].splitlines()
    told = [row.split(" | ")[0].removeprefix("| ") for row in rows if row.startswith("| ")]
    assert told[1:] == [m.what for m in MUTATIONS if m.area == "edges"]
