"""What the stores' contracts share."""

from __future__ import annotations

from typing import TypeVar

from django_idempotency.testing import StoreContract
from django_idempotency.testing.contract_operators import OperatorRules
from django_idempotency.testing.contract_processes import ProcessRules
from django_idempotency.testing.contract_races import RaceRules
from django_idempotency.testing.contract_twins import TwinRules

Contract = TypeVar("Contract", bound=type[StoreContract])


def second_server(contract: Contract) -> Contract:
    """Leave the rules to `make proof` on which two servers of one kind do not differ."""
    for name in contract.rules():
        if any(
            hasattr(group, name) for group in (OperatorRules, ProcessRules, RaceRules, TwinRules)
        ):
            setattr(contract, name, None)  # pytest collects functions only
    return contract
