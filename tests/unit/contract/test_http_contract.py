"""The rules of HTTP in this process, on a store in memory; and defects that they notice."""

from __future__ import annotations

import pytest
from django.core.handlers.wsgi import WSGIHandler

from django_idempotency.testing.http_contract import WSGITransport
from tests.app.contract import declared
from tests.app.contract.in_process import IN_MEMORY, in_process
from tests.unit.contract.defects import AFTER, BEFORE, spoilt


@pytest.mark.django_db(transaction=True)
class TestViewsInMemory(declared.Views):
    #: Work and answer cannot commit together.
    rolls_back = False
    leaves_out = dict.fromkeys(
        (
            "R67",
            "R70",
            "R71",
            "test_R51_at_the_end_of_its_patience_a_duplicate_is_refused",
            "test_R69_work_longer_than_its_lease_is_not_taken_over",
            "test_R73_R74_after_retention_it_runs_anything_and_not_before",
        ),
        "takes seconds: see tests/integration/contract_http",
    )

    @pytest.fixture(autouse=True)
    def _transport(self, tmp_path):
        self.directory = tmp_path
        with in_process(tmp_path, "wsgi", IN_MEMORY) as self.transport:
            yield


@pytest.mark.parametrize("defect", [*BEFORE, *AFTER])
def test_a_guard_with_a_defect_fails_the_rule_that_is_meant(transactional_db, tmp_path, defect):
    contract = declared.Views()
    contract.directory, contract.patience = tmp_path, 1
    for rule in {**BEFORE, **AFTER}[defect][1].split():
        with in_process(tmp_path, "wsgi", IN_MEMORY):
            contract.transport = WSGITransport(spoilt(WSGIHandler(), defect))
            with pytest.raises(AssertionError):
                getattr(contract, f"test_{rule}")()
