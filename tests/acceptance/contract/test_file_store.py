"""The rules of a store about processes: the guide's store keeps them, and defects are noticed."""

from __future__ import annotations

import pytest

from tests.acceptance.contract.file_store import DEFECTS, FileStoreContract
from tests.unit.contract.running import failures

pytestmark = [pytest.mark.processes, pytest.mark.leg("postgres18")]


class TestProcessesOfTheFileStore(FileStoreContract):
    """The other rules: tests/proof/test_file_store.py."""


for _rule in TestProcessesOfTheFileStore.rules():
    if "process" not in _rule and "R80" not in _rule:
        setattr(TestProcessesOfTheFileStore, _rule, None)


@pytest.mark.parametrize("defect", DEFECTS)
def test_defect_is_noticed_by_its_rule_about_processes(defect, tmp_path, monkeypatch):
    contract, rule, _, _ = DEFECTS[defect]
    monkeypatch.setattr(contract, "path", str(tmp_path / "records.sqlite3"))

    assert isinstance(failures(contract, [rule])[rule], AssertionError)
