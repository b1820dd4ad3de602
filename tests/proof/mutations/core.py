"""Changes of the engine, its attempts, leases and transactions."""

from __future__ import annotations

from tests.proof.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a duplicate is told to come back in no less than a minute",
        "engine.py",
        "1), 30)\n",
        "60), 60)\n",
        "tests/unit/core/test_expiry.py -k R49",
    ),
]
