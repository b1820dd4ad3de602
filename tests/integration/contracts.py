"""What the stores' contracts share."""

from __future__ import annotations

from typing import TypeVar

from django_idempotency.testing import StoreContract
from django_idempotency.testing.contract_claims import ClaimRules
from django_idempotency.testing.contract_interleavings import InterleavingRules
from django_idempotency.testing.contract_lost_answers import LostAnswerRules

Contract = TypeVar("Contract", bound=type[StoreContract])


def second_server(contract: Contract) -> Contract:
    """Leave the rules to `make proof` on which two servers of one kind do not differ."""
    groups = (ClaimRules, InterleavingRules, LostAnswerRules)
    for name in contract.rules():
        if not any(name in vars(group) for group in groups):
            setattr(contract, name, None)  # pytest collects functions only
    return contract
