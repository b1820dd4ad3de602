"""The worker of a store whose room is measured: records with the names that a project has."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

#: Records of a table that lives, if the machine can.
PER_SECOND = 80
SCOPE, OPERATION = "user:auth.user:1234", "POST payments:payment-list"


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Make the table, and return the commands."""
    import django
    from django.conf import settings

    store_of = {
        "PostgreSQL": {},
        "Redis": {
            "BACKEND": "django_idempotency.stores.redis.RedisStore",
            "OPTIONS": {"url": os.environ["BENCHMARK_REDIS"]},
        },
        "DynamoDB": {
            "BACKEND": "django_idempotency.stores.dynamodb.DynamoDBStore",
            "OPTIONS": {"table_name": "sizing", "endpoint_url": os.environ["BENCHMARK_DYNAMODB"]},
        },
    }
    settings.configure(
        DATABASES={"default": json.loads(os.environ["BENCHMARK_DATABASE"])},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_idempotency"],
        IDEMPOTENCY={"default": store_of[variant]},
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    if variant == "PostgreSQL":
        call_command("migrate", verbosity=0)
    if variant == "DynamoDB":
        call_command("idempotency_table", "--create", stdout=open(os.devnull, "w"))  # noqa: SIM115

    from django_idempotency.claims import ClaimRequest
    from django_idempotency.conf import store_for
    from django_idempotency.leases import Lease

    store = store_for("default")

    def record(size: int, retention: timedelta) -> uuid.UUID:
        key = uuid.uuid4()
        request = ClaimRequest(
            key,
            SCOPE,
            str(key),
            OPERATION,
            fingerprints=(os.urandom(32),),
            retention=retention,
            max_duration=timedelta(0),
            lease=min(retention, timedelta(minutes=1)),
        )
        lease = store.claim(request)
        assert isinstance(lease, Lease)
        store.complete(lease, os.urandom(size), retention=retention)
        return key

    def records(n: int, size: int) -> list[str]:
        """Keep so many records with results of so many bytes; their ids."""
        return [str(record(size, timedelta(days=1))) for _ in range(n)]

    def live(seconds: float, size: int, retention: float, sweep: float) -> dict[str, Any]:
        """Keep records for so long, and sweep so often; how many there were, and were swept."""
        kept, swept, began = 0, 0, time.monotonic()
        due = began + sweep
        while (now := time.monotonic()) < began + seconds:
            record(size, timedelta(seconds=retention))
            kept += 1
            if now > due:
                swept += store.sweep(limit=100_000)
                due += sweep
            time.sleep(max(0.0, began + kept / PER_SECOND - time.monotonic()))
        return {"kept": kept, "swept": swept}

    return {"records": records, "live": live}
