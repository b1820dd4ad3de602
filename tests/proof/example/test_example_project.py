"""The shop's own tests in every mode that `make test` leaves out."""

from __future__ import annotations

import pytest

from tests.acceptance.example.test_example_project import assert_passes, manage

__all__ = ["manage"]


@pytest.mark.parametrize(
    ("transaction", "atomic_requests"),
    [
        *(("", "1"), ("joined", "0"), ("joined", "1")),
        *(("single", "0"), ("single", "1"), ("separate", "0"), ("separate", "1")),
    ],
)
def test_the_shops_own_tests_pass(manage, transaction, atomic_requests):
    assert_passes(manage, transaction, atomic_requests)
