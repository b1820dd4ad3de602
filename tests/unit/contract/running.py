"""The rules of a contract called one by one, without pytest, to see which of them fail."""

from __future__ import annotations

import inspect
import itertools

import pytest

from django_idempotency.testing.children import Children

__all__ = ["failures"]


def failures(contract_class, rules=None):
    """Return the first error of each rule that fails, of all rules or of these."""
    failed = {}
    for name in contract_class.rules() if rules is None else rules:
        for parameters in _parameters(getattr(contract_class, name)):
            contract = contract_class()
            store = contract.make_store()
            rule = getattr(contract, name)
            try:
                with Children() as children:
                    if "children" in inspect.signature(rule).parameters:
                        parameters["children"] = children
                    rule(store, **parameters)
            except (Exception, pytest.fail.Exception) as error:
                # Its frames would keep event loops, and their threads, until the next collection.
                failed.setdefault(name, error.with_traceback(None))
            finally:
                contract.close_store(store)
    return failed


def _parameters(rule):
    """Yield what the marks ``parametrize`` of a rule come to."""
    axes = []
    for mark in getattr(rule, "pytestmark", ()):
        names, rows = mark.args
        names = [names] if isinstance(names, str) else list(names)
        rows = [[row] for row in rows] if len(names) == 1 else rows
        axes.append([dict(zip(names, row, strict=True)) for row in rows])
    for row in itertools.product(*axes):
        yield {name: value for part in row for name, value in part.items()}
