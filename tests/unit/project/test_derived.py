"""The changes that are derived from the source are those meant, and survivors still fit it."""

from __future__ import annotations

import ast
from textwrap import dedent

from tests.proof.derived import PACKAGE, changes_of, every_change, noticed
from tests.proof.derived.suites import AREAS, suites_of
from tests.proof.derived.verdicts import VERDICTS, every_verdict, one_line

CHANGES = {change.id: change for change in every_change()}


def derived(source: str) -> list[tuple[str, str, str]]:
    """Return kind, old and new of each change, on one line."""
    changes = changes_of("file.py", dedent(source))
    return [(change.kind, one_line(change.old), one_line(change.new)) for change in changes]


def test_condition_is_true_and_false_and_a_boundary_moves() -> None:
    assert derived("def f(a):\n    if a < 1:\n        return 2\n    return 3") == [
        ("true", "a < 1", "True"),
        ("false", "a < 1", "False"),
        ("boundary", "a < 1", "(a <= 1)"),
    ]


def test_condition_that_binds_a_name_still_binds_it() -> None:
    true, _ = derived("def f():\n    if (a := g()) is None:\n        a.b()")
    assert true == ("true", "(a := g()) is None", "((a := g()) is None, True)[1]")


def test_comparison_is_negated() -> None:
    assert derived("def f(a): return a is None") == [("negate", "a is None", "(a is not None)")]


def test_operand_and_not_are_left_out() -> None:
    assert derived("def f(a, b): return a and not b") == [
        ("swap", "a and not b", "(a or not b)"),
        ("operand", "a and not b", "(not b)"),
        ("operand", "a and not b", "(a)"),
        ("not", "not b", "(b)"),
    ]


def test_early_return_is_left_out_unless_its_condition_can_be_false() -> None:
    source = """
    def f(a):
        with a:
            return 1
        if a:
            return 2
        return 3
    """
    kinds = [("return", "return 1", "pass"), ("true", "a", "True"), ("false", "a", "False")]
    assert derived(source) == kinds


def test_handler_catches_nothing_or_one_less() -> None:
    source = """
    def f():
        try:
            g()
        except (KeyError, OSError):
            with suppress(ValueError):
                g()
    """
    assert derived(source) == [
        ("except", "(KeyError, OSError)", "()"),
        ("except", "(KeyError, OSError)", "((OSError,))"),
        ("except", "(KeyError, OSError)", "((KeyError,))"),
        ("except", "suppress(ValueError)", "suppress()"),
    ]


def test_clauses_of_sql_are_left_out() -> None:
    source = '''
    SQL = """
    UPDATE t SET a = 1, b = CASE WHEN c THEN 2 ELSE 3 END
     WHERE d = 4 AND (e OR NOT f)  -- this AND that
    """
    '''
    assert derived(source) == [
        ("term", "AND (e OR NOT f)", ""),
        ("term", "d = 4 AND", ""),
        ("term", "OR NOT f", ""),
        ("term", "e OR", ""),
        ("term", "c", "1 = 0"),
        ("not", "NOT", ""),
        ("assignment", "a = 1,", ""),
        ("assignment", ", b = CASE WHEN c THEN 2 ELSE 3 END", ""),
    ]


def test_condition_of_one_term_is_always_met() -> None:
    assert derived('SQL = "SELECT 1 FROM t WHERE a BETWEEN 1 AND 2 LIMIT 1"') == [
        ("term", "a BETWEEN 1 AND 2", "1 = 1")
    ]


def test_term_that_is_true_is_not_missed() -> None:
    assert derived('SQL = "SELECT 1 FROM t WHERE TRUE AND a = 1"') == [("term", "AND a = 1", "")]


def test_term_that_goes_over_strings_leaves_their_quotes() -> None:
    assert derived('X = " ".join(("#a = :b", "AND (#c = :d", "OR #e = :f)"))') == [
        ("term", 'AND (#c = :d", "OR #e = :f)', '", "'),
        ("term", '#a = :b", "AND', '", "'),
        ("term", "OR #e = :f", ""),
        ("term", '#c = :d", "OR', '", "'),
    ]


def test_script_in_lua() -> None:
    source = '''
    LUA = """
    local live = a == 1 and b   -- a comment
    redis.call('DEL', KEYS[1])
    return live
    """
    '''
    assert derived(source) == [
        ("term", "and b", ""),
        ("term", "a == 1 and", ""),
        ("negate", "==", "~="),
        ("write", "redis.call('DEL', KEYS[1])", ""),
    ]


def test_docstring_and_message_are_no_statements() -> None:
    assert derived('def f():\n    """SELECT this AND that."""\n    return "this and that"') == []


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
