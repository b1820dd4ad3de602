"""The demo tells the same story in every mode, and on every store."""

from __future__ import annotations

import re
import signal
from html import unescape

import pytest

from tests.acceptance.example.test_demo import (
    STORES,
    assert_ends,
    assert_told,
    own_temporary_directory,
    play,
)
from tests.pages import ROOT

__all__ = ["own_temporary_directory"]

pytestmark = pytest.mark.processes


def test_it_tells_the_whole_story_and_ends() -> None:
    code, output = play()
    assert code == 0, output
    assert_told(output)
    told = {_without_numbers(line) for line in output.splitlines()}
    recorded = re.findall("<text.*?>(.*)</text>", (ROOT / "docs/_static/demo.svg").read_text())
    assert len(recorded) > 50
    assert [line for line in recorded if _without_numbers(unescape(line)) not in told] == []


def _without_numbers(line: str) -> str:
    return re.sub(r"\d+", "0", line.strip())


@pytest.mark.parametrize("transaction", ["single", "separate"])
def test_it_tells_the_same_in_the_other_modes(transaction: str) -> None:
    code, output = play(EXAMPLE_TRANSACTION=transaction)
    assert code == 0, output
    assert_told(output, transaction)


@pytest.mark.parametrize("store", STORES)
def test_it_tells_the_same_on_another_store(store: str) -> None:
    code, output = play(IDEMPOTENCY_STORE=store)
    assert code == 0, output
    assert re.search(STORES[store], output), output
    assert_told(output, "separate")


@pytest.mark.parametrize(
    ("store", "number"), [("database", signal.SIGTERM), ("redis", signal.SIGKILL)]
)
def test_its_servers_die_with_it(store: str, number: signal.Signals) -> None:
    assert_ends(store, number)
