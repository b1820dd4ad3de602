"""A module that is imported already is what a changed source says: `tests.proof` judges so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.proof.mutations.exchange import NotExchanged, exchange, functions

SOURCE = """
from dataclasses import dataclass
from functools import cache, partial

LIMIT = 1
TEXT = "SELECT 1"
LONGER = TEXT + " FOR UPDATE"

@dataclass(frozen=True)
class Script:
    text: str

SCRIPT = Script(TEXT)

class Statements:
    CLAIM = f"{TEXT} WHERE a"
    def limit(self):
        return LIMIT + 1

@cache
def cached():
    return 1

def made(number):
    def inner():
        return number + 1
    return inner

two = made(1)
other = lambda: 1
"""


@pytest.fixture
def change(tmp_path: Path) -> Iterator[Callable[[str, str], ModuleType]]:
    """`change(old, new)`: the module, which has been imported before that was exchanged."""
    module = ModuleType("exchanged_module")
    module.__file__ = str(tmp_path / "exchanged_module.py")
    sys.modules[module.__name__] = module
    exec(compile(SOURCE, module.__file__, "exec", dont_inherit=True), module.__dict__)

    def changed(old: str, new: str) -> ModuleType:
        assert SOURCE.count(old) == 1
        exchange(str(module.__file__), SOURCE, SOURCE.replace(old, new), functions())
        return module

    yield changed
    del sys.modules[module.__name__]


def test_function_has_the_change_however_it_is_held(
    change: Callable[[str, str], ModuleType],
) -> None:
    held = sys.modules["exchanged_module"].Statements().limit
    change("LIMIT + 1", "LIMIT + 2")
    assert held() == 3


def test_function_that_is_decorated_and_a_closure_have_it(
    change: Callable[[str, str], ModuleType],
) -> None:
    held = sys.modules["exchanged_module"].two
    change("return number + 1", "return number + 5")
    assert held() == 6
    held = sys.modules["exchanged_module"].cached
    change("    return 1", "    return 7")
    assert held() == 7


def test_texts_are_said_again_with_what_is_made_of_them(
    change: Callable[[str, str], ModuleType],
) -> None:
    held = sys.modules["exchanged_module"].SCRIPT, sys.modules["exchanged_module"].Statements
    module = change('"SELECT 1"', '"SELECT 2"')
    assert module.LONGER == "SELECT 2 FOR UPDATE"
    assert [held[0].text, held[1].CLAIM] == ["SELECT 2", "SELECT 2 WHERE a"]
    assert held == (module.SCRIPT, module.Statements)


def test_what_cannot_be_exchanged_is_told(change: Callable[[str, str], ModuleType]) -> None:
    with pytest.raises(NotExchanged):
        change("return number + 1", "return 1")  # no closure any more
    with pytest.raises(NotExchanged):
        change("made(1)", "made(2)")
