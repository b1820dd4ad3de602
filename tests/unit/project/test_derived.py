"""The changes that are derived from the source are those meant, and survivors still fit it."""

from __future__ import annotations

import ast

import pytest

from tests.proof.derived import PACKAGE, changes_of, every_change, noticed
from tests.proof.derived.suites import AREAS, suites_of
from tests.proof.derived.verdicts import VERDICTS, every_verdict, one_line

CHANGES = {change.id: change for change in every_change()}


#: A source, and the changes that follow from it.
DERIVED: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "a condition is true and false, and a boundary moves": (
        "def f(a):\n    if a < 1:\n        return 2\n    return 3",
        [("true", "a < 1", "True"), ("false", "a < 1", "False"), ("boundary", "a < 1", "(a <= 1)")],
    ),
    "a condition that binds a name still binds it": (
        "def f():\n    if (a := g()):\n        a.b()",
        [
            ("true", "a := g()", "((a := g()), True)[1]"),
            ("false", "a := g()", "((a := g()), False)[1]"),
        ],
    ),
    "a comparison is negated": (
        "def f(a): return a is None",
        [("negate", "a is None", "(a is not None)")],
    ),
    "an operand and a not are left out": (
        "def f(a, b): return a and not b",
        [
            ("swap", "a and not b", "(a or not b)"),
            ("operand", "a and not b", "(not b)"),
            ("operand", "a and not b", "(a)"),
            ("not", "not b", "(b)"),
        ],
    ),
    "an early return is left out unless its condition can be false": (
        "def f(a):\n with a:\n  return 1\n if a:\n  return 2\n return 3",
        [("return", "return 1", "pass"), ("true", "a", "True"), ("false", "a", "False")],
    ),
    "a handler catches nothing or one less": (
        "def f():\n try:\n  g()\n except (KeyError, OSError):\n"
        "  with suppress(ValueError):\n   g()",
        [
            ("except", "(KeyError, OSError)", "()"),
            ("except", "(KeyError, OSError)", "((OSError,))"),
            ("except", "(KeyError, OSError)", "((KeyError,))"),
            ("except", "suppress(ValueError)", "suppress()"),
        ],
    ),
    "clauses of SQL are left out": (
        'SQL = """UPDATE t SET a = 1, b = CASE WHEN c THEN 2 ELSE 3 END\n'
        ' WHERE d = 4 AND (e OR NOT f)  -- this AND that\n"""',
        [
            ("term", "AND (e OR NOT f)", ""),
            ("term", "d = 4 AND", ""),
            ("term", "OR NOT f", ""),
            ("term", "e OR", ""),
            ("term", "c", "1 = 0"),
            ("not", "NOT", ""),
            ("assignment", "a = 1,", ""),
            ("assignment", ", b = CASE WHEN c THEN 2 ELSE 3 END", ""),
        ],
    ),
    "a condition of one term is always met": (
        'SQL = "SELECT 1 FROM t WHERE a BETWEEN 1 AND 2 LIMIT 1"',
        [("term", "a BETWEEN 1 AND 2", "1 = 1")],
    ),
    "a term that is true is not missed": (
        'SQL = "SELECT 1 FROM t WHERE TRUE AND a = 1"',
        [("term", "AND a = 1", "")],
    ),
    "a term that goes over strings leaves their quotes": (
        'X = " ".join(("#a = :b", "AND (#c = :d", "OR #e = :f)"))',
        [
            ("term", 'AND (#c = :d", "OR #e = :f)', '", "'),
            ("term", '#a = :b", "AND', '", "'),
            ("term", "OR #e = :f", ""),
            ("term", '#c = :d", "OR', '", "'),
        ],
    ),
    "a script in Lua": (
        'LUA = """\nlocal live = a == 1 and b   -- a comment\n'
        'redis.call(\'DEL\', KEYS[1])\nreturn live\n"""',
        [
            ("term", "and b", ""),
            ("term", "a == 1 and", ""),
            ("negate", "==", "~="),
            ("write", "redis.call('DEL', KEYS[1])", ""),
        ],
    ),
    "a docstring and a message are no statements": (
        'def f():\n    """SELECT this AND that."""\n    return "this and that"',
        [],
    ),
}


@pytest.mark.parametrize(("source", "changes"), DERIVED.values(), ids=DERIVED)
def test_changes_that_follow_from_a_source(
    source: str, changes: list[tuple[str, str, str]]
) -> None:
    found = changes_of("file.py", source)
    assert [(it.kind, one_line(it.old), one_line(it.new)) for it in found] == changes


def test_each_change_of_the_source_has_an_id_and_leaves_a_source() -> None:
    texts = {change.file: (PACKAGE / change.file).read_text() for change in CHANGES.values()}
    assert len(CHANGES) == len(list(every_change())) > 2000
    last = {change.file: change for change in CHANGES.values()}
    for change in last.values():  # of each file; all of them take a minute
        ast.parse(change.made(texts[change.file]), change.id)


def test_each_area_has_its_tests() -> None:
    files = {change.file for change in CHANGES.values()}
    assert all(suites_of(file) for file in files)
    assert [area for area in AREAS if not any(file.startswith(area) for file in files)] == []


def test_each_survivor_is_still_a_change() -> None:
    verdicts = every_verdict()
    gone = [v.id for v in verdicts if v.id not in CHANGES or not v.fits(CHANGES[v.id])]
    assert gone == []
    assert [v.id for v in verdicts if not v.reason.startswith(VERDICTS)] == []
    assert len({v.id for v in verdicts}) == len(verdicts)


def test_noticed_change_is_judged_again_once_its_function_is_rewritten(tmp_path, monkeypatch):
    monkeypatch.setattr(noticed, "PAGES", tmp_path)
    source = "def f(a):\n    return a is None\n\ndef g(a):\n    return not a\n"
    for change in changes_of("engine/file.py", source):
        noticed.keep(change, "unit")

    rewritten = source.replace("None", "Ellipsis")
    of_f, of_g = changes_of("engine/file.py", rewritten)

    digests = noticed.known()
    assert digests[of_f.id] != of_f.digest
    assert digests[of_g.id] == of_g.digest


def test_pages_of_what_was_noticed_are_of_the_areas():
    pages = {noticed.page_of(change.file) for change in CHANGES.values()}
    assert set(noticed.PAGES.glob("*.txt")) <= pages
    assert len(noticed.known()) > 500
