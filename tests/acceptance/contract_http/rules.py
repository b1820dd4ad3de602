"""Which rules are shown from outside, and by which contracts; ``python -m tests.rules`` prints."""

from __future__ import annotations

import os

import django

from django_idempotency.testing import HTTPContract

__all__ = ["NOT_FROM_OUTSIDE", "contracts", "shown"]

#: What only a test within the process can see; tests/unit/project/test_rules.py has them all.
NOT_FROM_OUTSIDE = {f"R{n}" for n in (47, 54, 68, 72, 75, 76, 82, 84, 85, 87, 88, *range(91, 99))}


def contracts() -> list[type[HTTPContract]]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from tests.acceptance.contract_http import test_servers as selected
    from tests.integration.contract_http import test_views as in_process
    from tests.proof.contract_http import test_servers as whole
    from tests.unit.contract import test_http_contract as in_memory

    return [
        contract
        for module in (in_memory, in_process, selected, whole)
        for contract in vars(module).values()
        if isinstance(contract, type)
        and issubclass(contract, HTTPContract)
        and contract.__module__ == module.__name__
    ]


def shown() -> dict[str, list[str]]:
    """Return the contracts that show each rule, by their modules."""
    found: dict[str, list[str]] = {}
    for contract in contracts():
        for rule in contract.rules():
            found.setdefault(rule, []).append(f"{contract.__module__}.{contract.__name__}")
    return found
