"""The store contract: what every store promises, as tests that its author inherits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_idempotency.testing.contract_claims import ClaimRules
from django_idempotency.testing.contract_endings import EndingRules
from django_idempotency.testing.contract_expiry import ExpiryRules
from django_idempotency.testing.contract_interleavings import InterleavingRules
from django_idempotency.testing.contract_lost_answers import LostAnswerRules
from django_idempotency.testing.contract_operators import OperatorRules
from django_idempotency.testing.contract_processes import ProcessRules
from django_idempotency.testing.contract_races import RaceRules
from django_idempotency.testing.contract_steps import StepRules
from django_idempotency.testing.contract_uncertain import UncertainRules
from django_idempotency.testing.contract_waiting import WaitingRules


class StoreContract(
    UncertainRules,
    StepRules,
    ClaimRules,
    EndingRules,
    ExpiryRules,
    OperatorRules,
    LostAnswerRules,
    InterleavingRules,
    RaceRules,
    ProcessRules,
    WaitingRules,
):
    """
    Every promise of a store, as a test.

    Inherit from it in a class whose name begins with ``Test``, and name the store::

        class TestMyStore(StoreContract):
            backend = "myproject.stores.MyStore"
            options = {"url": "my://localhost/"}

    Rules that need a feature that the store lacks are removed from the class; see `rules`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        lacks = cls.lacks()
        cls.left_out = {}
        for name, rule in cls._all_rules().items():
            missing = [need for need in getattr(rule, "needs", ()) if need in lacks]
            if missing:
                cls.left_out[name] = lacks[missing[0]]
                setattr(cls, name, None)  # pytest collects functions only
            elif getattr(cls, name) is None:  # a base class left out what this one has
                setattr(cls, name, rule)

    @classmethod
    def rules(cls) -> list[str]:
        """Return the names of the rules that are tested; `left_out` has the others."""
        return [name for name in cls._all_rules() if name not in cls.left_out]

    @classmethod
    def _all_rules(cls) -> dict[str, Callable[..., None]]:
        return {
            name: rule
            for part in reversed(cls.__mro__)
            for name, rule in vars(part).items()
            if name.startswith("test") and callable(rule)
        }
