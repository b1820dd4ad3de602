"""What counts as noticed, where one process has collected the tests for all changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.proof.mutations.copies import copy_project
from tests.proof.mutations.sessions import Session

SOURCE = "def one():\n    return 1\n"
TESTS = """
import threading
from django_idempotency.tried import one

def test_one():
    assert one() == 1

def test_that_fails():
    assert one() == 100

def test_that_waits_for_one():
    if one() != 1:
        threading.Event().wait()
"""
FILE = "tests/unit/core/test_tried.py"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Tests of a module that only a copy of the project has."""
    copy = copy_project(tmp_path_factory.mktemp("copies") / "copy")
    (copy / "django_idempotency/tried.py").write_text(SOURCE)
    (copy / FILE).write_text(TESTS)
    with closing(Session(copy, "", [FILE])) as session:
        yield session


def test_test_that_fails_with_the_change_alone_notices_it(session: Session) -> None:
    judged = session.judge("tried.py", SOURCE.replace("1", "2"), [FILE, "-k", "test_one"])
    assert judged == (True, f"{FILE}::test_one")
    assert session.text_of("tried.py") == SOURCE


def test_tests_that_pass_do_not(session: Session) -> None:
    judged = session.judge("tried.py", SOURCE.replace("1", "0 + 1"), [f"{FILE}::test_one"])
    assert judged == (False, "")


def test_test_that_fails_without_the_change_does_not(session: Session) -> None:
    test = f"{FILE}::test_that_fails"
    judged = session.judge("tried.py", SOURCE.replace("1", "2"), [test])
    assert judged == (False, f"{test} fails without the change")


def test_test_that_hangs_does(session: Session) -> None:
    test = f"{FILE}::test_that_waits_for_one"
    judged = session.judge("tried.py", SOURCE.replace("1", "2"), [f"{FILE}::test_one", test], 60)
    assert judged == (True, f"{FILE}::test_one")
    judged = session.judge("tried.py", SOURCE.replace("1", "2"), [test], 3)
    assert judged == (True, f"{test}, which hangs")


def test_what_only_a_new_process_has_is_judged_in_one(session: Session) -> None:
    text = SOURCE.replace("1", "2") + "one = lambda: 3\n"
    judged = session.judge("tried.py", text, [f"{FILE}::test_one"])
    assert judged == (True, "a process of its own")


def test_no_test_is_no_judge(session: Session) -> None:
    judged = session.judge("tried.py", SOURCE.replace("1", "2"), [FILE, "-k", "of_another_name"])
    assert judged == (False, "pytest ended with 5")
