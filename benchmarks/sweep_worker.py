"""The workers of the sweep's table: one claims and completes, the other sweeps."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

#: What beat's sweep deletes at a time.
LIMIT = 5000


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Make the table, and return the commands."""
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": json.loads(os.environ["BENCHMARK_DATABASE"])},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_idempotency"],
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    if variant != "sweep" or "wal" in os.environ["BENCHMARK_DATABASE"]:
        call_command("migrate", verbosity=0)
    from django.db import connection

    from django_idempotency.claims import ClaimRequest
    from django_idempotency.conf import store_for
    from django_idempotency.leases import Lease
    from django_idempotency.sweep import sweep as sweep_records

    store = store_for("default")

    def claims(seconds: float) -> list[float]:
        """Claim and complete for so long; the microseconds of each claim."""
        taken, ends = [], time.monotonic() + seconds
        while time.monotonic() < ends:
            key = uuid.uuid4()
            began = time.perf_counter()
            lease = store.claim(ClaimRequest(key, "scope", str(key), fingerprints=(b"f" * 32,)))
            taken.append((time.perf_counter() - began) * 1e6)
            assert isinstance(lease, Lease)
            store.complete(lease, b"x" * 200, retention=timedelta(hours=24))
            time.sleep(0.001)  # the latency is measured, not the load
        return taken

    def sweep(seconds: float, share: float) -> dict[str, Any]:
        """Sweep for so long; how many went, in how many seconds, and what each statement took."""
        taken: list[float] = []

        def timed(execute: Callable[..., Any], *arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return execute(*arguments)
            finally:
                taken.append((time.perf_counter() - began) * 1e6)

        began = time.perf_counter()
        with connection.execute_wrapper(timed):
            found = sweep_records("default", limit=LIMIT, share=share, max_seconds=seconds)
        return {"swept": found["default"], "seconds": time.perf_counter() - began, "us": taken}

    def hot() -> dict[str, int]:
        """Count this table's updates, and those that touched no index."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
                "WHERE relname = 'idempotency_record'"
            )
            updates, without = cursor.fetchone()
        return {"updates": updates, "hot": without}

    return {"claims": claims, "sweep": sweep, "hot": hot}
