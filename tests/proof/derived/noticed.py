"""
The changes that a test has noticed: a page for each area, which is kept with the source.

A line has the digest of the change and of its function, its id, and which tests noticed it. So
``make mutants`` judges what is new, or has been rewritten.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.proof.derived import Change, every_change
from tests.proof.derived.verdicts import every_verdict

__all__ = ["PAGES", "keep", "known", "page_of", "table", "tidy"]

PAGES = Path(__file__).with_name("noticed")


def known() -> dict[str, str]:
    """Return the digest of each change that was noticed, by its id."""
    return {name: digest for digest, name, _ in _lines()}


def keep(change: Change, by: str) -> None:
    """Note that tests of the suite `by` have noticed the change."""
    with page_of(change.file).open("a") as page:
        page.write(f"{change.digest} {change.id} {by}\n")


def tidy() -> None:
    """Sort the pages by the source, and drop what is no change of it any more."""
    noticed = {(name, digest): by for digest, name, by in _lines()}
    pages: dict[Path, list[str]] = {page: [] for page in PAGES.glob("*.txt")}
    for change in every_change():
        if by := noticed.get((change.id, change.digest)):
            pages.setdefault(page_of(change.file), []).append(f"{change.digest} {change.id} {by}\n")
    for page, lines in pages.items():
        page.write_text("".join(lines))


def table() -> str:
    """Return how many changes of each file are noticed, have a verdict, or are left."""
    noticed, judged = known(), {verdict.id for verdict in every_verdict()}
    counts: dict[str, Counter[str]] = {}
    for change in every_change():
        what = "left"
        if change.id in judged:
            what = "verdict"
        elif noticed.get(change.id) == change.digest:
            what = "noticed"
        counts.setdefault(change.file, Counter())[what] += 1
    rows = ["| file | changes | noticed | no test need notice | left |", "|---|---|---|---|---|"]
    for name, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        figures = (count.total(), count["noticed"], count["verdict"], count["left"])
        rows.append(f"| `{name}` | {' | '.join(map(str, figures))} |")
    return "\n".join(rows)


def page_of(file: str) -> Path:
    """Return the page of the area to which a file belongs."""
    *folders, _ = file.split("/")
    return PAGES / f"{folders[-1]}.txt"


def _lines() -> list[tuple[str, str, str]]:
    lines = []
    for page in sorted(PAGES.glob("*.txt")):
        for line in page.read_text().splitlines():
            digest, name, by = line.split()
            lines.append((digest, name, by))
    return lines
