"""The race of as many processes as the contract has by default; the contract, prepared."""

from __future__ import annotations

from typing import ClassVar

import pytest

from django_idempotency.stores.database import prepared
from django_idempotency.testing import StoreContract
from django_idempotency.testing.contract_base import ContractBase
from django_idempotency.testing.contract_processes import ProcessRules
from tests.integration.database.test_contract import DatabaseHooks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


class TestRaceOfManyProcesses(DatabaseHooks, ContractBase):
    patience: ClassVar[float] = 120

    children = ProcessRules.children
    test_R26_I1_one_of_many_processes_wins_each_key = (
        ProcessRules.test_R26_I1_one_of_many_processes_wins_each_key
    )


@pytest.mark.leg("postgres18", "postgres16")
class TestPreparedStatements(DatabaseHooks, StoreContract):
    thread_keys = 10
    racers = 2
    process_keys = 10

    @pytest.fixture(autouse=True)
    def prepared_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each statement is prepared when it is used for the first time."""
        monkeypatch.setattr(prepared, "USES_BEFORE", 0)
