"""
Small changes that a careless refactoring could make, each with the test that finds it.

``python -m tests.proof.mutations`` makes each of them in a copy of the project, and runs that test.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mutation"]


@dataclass(frozen=True)
class Mutation:
    """One change of the source: `old`, which stands once in the file, becomes `new`."""

    what: str
    #: Below django_idempotency/.
    file: str
    old: str
    new: str
    #: The test, or the tests, that have to fail: what pytest takes, and nothing of a parameter.
    test: str
    #: The leg that the test needs; tests/unit needs none.
    leg: str = ""
