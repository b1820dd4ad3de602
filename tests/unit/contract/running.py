"""The rules of a contract called one by one, without pytest, to see which of them fail."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from django_idempotency.testing import StoreContract

__all__ = ["failures"]


def failures(
    contract_class: type[StoreContract], rules: Collection[str] | None = None
) -> dict[str, BaseException]:
    """Return the first error of each rule that fails, of all rules or of these."""
    failed: dict[str, BaseException] = {}
    for name in contract_class.rules() if rules is None else rules:
        for parameters in _parameters(getattr(contract_class, name)):
            contract = contract_class()
            store = contract.make_store()
            try:
                getattr(contract, name)(store, **parameters)
            except (Exception, pytest.fail.Exception) as error:
                # Its frames would keep event loops, and their threads, until the next collection.
                failed.setdefault(name, error.with_traceback(None))
            finally:
                contract.close_store(store)
    return failed


def _parameters(rule: Any) -> Iterator[dict[str, Any]]:
    """Yield what the marks ``parametrize`` of a rule come to."""
    axes = []
    for mark in getattr(rule, "pytestmark", ()):
        assert mark.name == "parametrize"
        names, rows = mark.args
        if isinstance(names, str):
            axes.append([{names: value} for value in rows])
        else:
            axes.append([dict(zip(names, row, strict=True)) for row in rows])
    for row in itertools.product(*axes):
        yield {name: value for part in row for name, value in part.items()}
