"""The pytest plugin: its fixtures, what it says of contracts, and that it asks for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

import django_idempotency as idempotency
from django_idempotency.conf import store_for
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing import FakeClock
from tests.pages import DOCS, blocks_of
from tests.services.processes import ROOT

PLUGIN = "django_idempotency.testing.pytest_plugin"

# The contract of a store outside of any Django project, with a rule that fails.
CONTRACT = """
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock, StoreContract

class Forgetful(MemoryStore):
    def claim(self, request):
        claimed = super().claim(request)
        self._records.pop(request.record_id)
        return claimed

class TestMine(StoreContract):
    backend = "django_idempotency.stores.memory.MemoryStore"
    options = {"clock": FakeClock()}
    shared = False
    thread_keys = 2

class TestForgetful(TestMine):
    backend = "test_mine.Forgetful"
"""


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project of its own, which has no settings."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DJANGO", "PYTEST"))
    }
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_fixture_of_the_store_is_the_default_one(
    idempotency_store: BaseStore, idempotency_clock: FakeClock
) -> None:
    assert store_for() is idempotency_store
    assert not idempotency.run(lambda lease: 1, key="k", scope="s").replayed
    assert idempotency.run(lambda lease: 1, key="k", scope="s").replayed

    idempotency_clock.advance(timedelta(hours=25))

    assert not idempotency.run(lambda lease: 1, key="k", scope="s").replayed


@pytest.fixture
def setting_that_comes_back() -> Iterator[None]:
    before = settings.IDEMPOTENCY
    yield
    assert settings.IDEMPOTENCY is before


def test_fixture_puts_the_setting_back(
    setting_that_comes_back: None, idempotency_store: BaseStore
) -> None:
    assert store_for() is idempotency_store


def test_fixture_has_a_store_for_each_test(idempotency_store: BaseStore) -> None:
    assert idempotency_store.browse().records == ()


def test_documented_test_with_the_fixtures_passes(
    idempotency_store: BaseStore, idempotency_clock: FakeClock
) -> None:
    texts = [block.text for block in blocks_of(DOCS / "howto" / "testing.md")]
    names: dict[str, Any] = {"idempotency": idempotency, "timedelta": timedelta}
    [run] = [text for text in texts if "def run(" in text]
    [test] = [text for text in texts if "idempotency_clock" in text]
    exec(run.partition("clock = ")[0] + test, names)

    names["test_a_key_is_new_after_a_day"](idempotency_store, idempotency_clock)


@pytest.mark.processes
def test_loading_the_plugin_imports_neither_Django_nor_the_contract() -> None:
    code = f"import {PLUGIN}, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    loaded = [name for name in done.stdout.split() if name.startswith(("django.", "django_id"))]
    assert sorted(loaded) == ["django_idempotency", "django_idempotency.testing", PLUGIN]


@pytest.mark.processes
def test_contract_runs_and_is_summed_up_without_Django(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CONTRACT)

    done = run_pytest(tmp_path, "-q", "-k", "TestMine")

    assert done.returncode == 0, done.stdout + done.stderr
    assert " store contract " in done.stdout
    assert "\nTestMine: 2" in done.stdout
    assert "left out: 4, because its records belong to one process" in done.stdout
    assert "left out: 2, because there is no hook corrupt()" in done.stdout


@pytest.mark.processes
def test_rules_that_were_left_out_are_named_when_asked(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CONTRACT)

    done = run_pytest(tmp_path, "-v", "-k", "TestMine and test_I6")

    assert "    test_get_of_a_damaged_record_is_an_error\n" in done.stdout


@pytest.mark.processes
def test_failures_are_counted_and_explained(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CONTRACT)

    done = run_pytest(tmp_path, "-q", "-k", "TestForgetful and won_claim_is_recorded")

    assert done.returncode == 1
    assert "TestForgetful: 0 passed, 1 did not" in done.stdout
    assert "the record is gone" in done.stdout
    assert "assert None is not None" in done.stdout  # pytest's own explanation


@pytest.mark.processes
def test_xdist_hands_the_sums_on(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CONTRACT)

    done = run_pytest(tmp_path, "-q", "-n", "2", "-k", "TestMine and test_I6")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nTestMine: 18 passed" in done.stdout
