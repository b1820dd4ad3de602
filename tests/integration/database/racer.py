"""A process that claims keys, each at the moment it is told to: see `test_races`."""

from __future__ import annotations

import os
import sys

import django


def main() -> None:
    """Claim a key per byte that comes from one pipe, and answer into another: 1 for won, 0."""
    django.setup()
    from django.db import connection

    from django_idempotency.records import Lease
    from django_idempotency.stores.database import DatabaseStore
    from tests.integration.database.claims import claim_request

    starts, answers = map(int, sys.argv[1:])
    store = DatabaseStore()
    connection.ensure_connection()
    os.write(answers, b"r")  # ready
    number = 0
    while os.read(starts, 1):
        won = isinstance(store.claim(claim_request(f"key {number}")), Lease)
        os.write(answers, b"1" if won else b"0")
        number += 1


if __name__ == "__main__":
    main()
