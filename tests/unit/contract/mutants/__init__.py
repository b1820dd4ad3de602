"""Defective stores: each breaks one rule, and the contract has to notice it by the right one."""

from __future__ import annotations

from tests.unit.contract.mutants import (
    answers,
    claims,
    identity,
    operators,
    owners,
    records,
    renewals,
)
from tests.unit.contract.mutants.base import Mutant, SoundStore

__all__ = ["MUTANTS", "Mutant", "SoundStore"]

#: All of them, in the order of the table in docs/contributing/mutants.md.
MUTANTS: list[type[Mutant]] = [
    value
    for module in (claims, identity, owners, renewals, answers, records, operators)
    for value in vars(module).values()
    if isinstance(value, type) and value.__module__ == module.__name__
]
