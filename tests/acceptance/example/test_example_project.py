"""The example: its own tests, checks and commands, each in a process with its own settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

Manage = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    """`manage("check", EXAMPLE_LEASE="3")`: a command of the example, on a database of its own."""

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        outside = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("EXAMPLE_", "DJANGO_SETTINGS_MODULE"))
        }
        return subprocess.run(
            [sys.executable, "-m", "example_project.manage", *arguments],
            cwd=ROOT,
            env={**outside, "EXAMPLE_DATABASE": str(tmp_path / "shop.sqlite3"), **environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("transaction", "atomic_requests"), [("", "0"), ("single", "1"), ("separate", "0")]
)
def test_the_shops_own_tests_pass(manage: Manage, transaction: str, atomic_requests: str) -> None:
    assert_passes(manage, transaction, atomic_requests)


def assert_passes(manage: Manage, transaction: str, atomic_requests: str) -> None:
    environ = {"EXAMPLE_ATOMIC_REQUESTS": atomic_requests}
    if transaction:
        environ["EXAMPLE_TRANSACTION"] = transaction
    result = manage("test", "example_project", **environ)
    assert result.returncode == 0, result.stderr
    assert "Ran 0 tests" not in result.stderr


def test_django_has_nothing_to_say(manage: Manage) -> None:
    result = manage("check", "--fail-level", "WARNING")
    assert result.returncode == 0, result.stderr


def test_migrations_are_complete(manage: Manage) -> None:
    result = manage("makemigrations", "--check", "--dry-run")
    assert result.returncode == 0, result.stdout


def test_schema_is_valid_and_without_warnings(manage: Manage) -> None:
    result = manage("spectacular", "--validate", "--fail-on-warn")
    assert result.returncode == 0, result.stderr
    assert "name: Idempotency-Key" in result.stdout


def test_seed_adds_what_is_missing_and_nothing_twice(manage: Manage) -> None:
    assert manage("migrate", "-v0").returncode == 0
    first, again = manage("seed"), manage("seed")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert "there:" not in first.stdout
    assert "added:" not in again.stdout
    assert first.stdout.replace("added:", "there:") == again.stdout


def test_known_passwords_stay_out_of_production(manage: Manage) -> None:
    production = {"EXAMPLE_DEBUG": "0", "EXAMPLE_SECRET_KEY": "secret"}
    assert manage("migrate", "-v0", **production).returncode == 0
    result = manage("seed", **production)
    assert result.returncode == 1
    assert "Known passwords" in result.stderr


def test_without_debug_a_secret_is_needed(manage: Manage) -> None:
    result = manage("check", EXAMPLE_DEBUG="0")
    assert result.returncode == 1
    assert "EXAMPLE_SECRET_KEY" in result.stderr


def test_a_postgresql_url_is_read_in_full() -> None:
    from example_project.database import postgresql

    entry = postgresql("postgres://us%40er:p%2Fw@db.example:6432/shop%20a?sslmode=disable")
    assert entry["NAME"] == "shop a"
    assert (entry["USER"], entry["PASSWORD"]) == ("us@er", "p/w")
    assert (entry["HOST"], entry["PORT"]) == ("db.example", "6432")
    assert entry["OPTIONS"] == {"sslmode": "disable"}
    assert postgresql("postgresql:///shop?host=/run/pg")["HOST"] == "/run/pg"
