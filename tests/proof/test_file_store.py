"""The store of the guide passes the whole contract, and its defects fail just some rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.contract.file_store import DEFECTS, FileStoreContract
from tests.unit.contract.running import failures

pytestmark = [pytest.mark.processes, pytest.mark.leg("postgres18")]


class TestFileStore(FileStoreContract):
    racers, process_keys = 8, 100


@pytest.mark.parametrize("defect", DEFECTS)
def test_defect_is_noticed_by_its_rules_about_processes(
    defect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract: Any
    contract, rule, others, not_noticed = DEFECTS[defect]
    monkeypatch.setattr(contract, "path", str(tmp_path / "records.sqlite3"))

    failed = failures(contract, {rule, *others, *not_noticed})

    assert set(failed) == {rule, *others}
    assert all(isinstance(error, AssertionError) for error in failed.values())
