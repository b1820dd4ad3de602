"""What the contracts leave out, and that the two servers show all else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.contract_http.rules import NOT_FROM_OUTSIDE, contracts, shown
from tests.acceptance.contract_http.served import NOT_UNDER, SERVERS
from tests.rules import RULES

ROOT = Path(__file__).parents[3]
HTTP = [rule for rule in RULES if rule.startswith("R")]


@pytest.mark.parametrize("rule", [rule for rule in HTTP if rule not in NOT_FROM_OUTSIDE])
@pytest.mark.parametrize("server", SERVERS)
def test_each_rule_runs_against_each_server(rule: str, server: str) -> None:
    assert shown()[rule][server]


@pytest.mark.parametrize("rule", NOT_FROM_OUTSIDE)
def test_what_is_not_seen_from_outside_is_proved_from_inside(rule: str) -> None:
    _, test = NOT_FROM_OUTSIDE[rule]
    path, _, name = test.partition("::")

    assert rule in name.split("_")
    assert f"def {name}(" in (ROOT / path).read_text()
    assert rule not in shown()


def test_every_test_of_the_contract_runs_somewhere() -> None:
    left_out = [set(contract.left_out()) for contract in contracts()]

    assert set.intersection(*left_out) == set()


def test_what_a_server_cannot_show_is_a_test() -> None:
    names = {
        name for contract in contracts() for tests in contract.rules().values() for name in tests
    }

    assert {name for reasons in NOT_UNDER.values() for name in reasons} <= names


def test_the_list_is_printed() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.acceptance.contract_http.rules"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert "79 of 97 rules are shown from outside under gunicorn and uvicorn." in result.stdout
    assert "Nowhere" not in result.stdout
    assert "gunicorn: test_R46_chunked_equals_sized: under WSGI" in result.stdout
