"""A process that claims many keys as fast as it can: `python -m tests.database.racer name keys`."""

from __future__ import annotations

import json
import sys

import django


def main() -> None:
    """Say that we are ready, claim when told, and write which keys were won."""
    django.setup()
    from django.db import connection

    from django_idempotency.records import Lease
    from django_idempotency.stores.database import DatabaseStore
    from tests.database.claims import claim_request

    store = DatabaseStore()
    connection.ensure_connection()
    print("ready", flush=True)
    sys.stdin.readline()
    keys = [f"key {number}" for number in range(int(sys.argv[1]))]
    won = [key for key in keys if isinstance(store.claim(claim_request(key)), Lease)]
    print(json.dumps(won), flush=True)


if __name__ == "__main__":
    main()
