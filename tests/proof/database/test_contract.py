"""The race of as many processes as the contract has by default."""

from __future__ import annotations

from typing import ClassVar

import pytest

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
