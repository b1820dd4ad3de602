"""
The admin over a large table, on a PostgreSQL of its own: ``python -m benchmarks.admin [rows]``.

For each page: its statements, the slowest of them, and how many rows the largest scan read. Then
what the indexes that docs/howto/admin names cost a claim.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from contextlib import nullcontext
from typing import Any

CLAIMS = 2_000
ROUNDS = 5


def main(rows: int) -> None:
    from tests.services.postgres import URL_VARIABLE, PostgresServer

    with PostgresServer(18) as server:
        os.environ[URL_VARIABLE] = server.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        for name in ("idempotency", "idempotency_other"):
            server.create_database(name)
        import django

        django.setup()
        from django.db import connections

        try:
            measure(rows)
        finally:
            connections.close_all()


def measure(rows: int) -> None:
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    from tests.integration.database import test_admin_plans

    plans: Any = test_admin_plans
    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("admin"))
    urls = plans.pages(rows)
    print(f"{rows} rows")
    print("| page | statements | slowest, ms | all, ms | largest scan, rows | whole page, ms |")
    print("|---|---|---|---|---|---|")
    for name, url in urls.items():
        plans.Page(client, url)
        began = time.perf_counter()
        client.get("/admin/django_idempotency/idempotencyrecord/" + url)
        whole = (time.perf_counter() - began) * 1000
        page = plans.Page(client, url)
        slowest, total = max(page.milliseconds), sum(page.milliseconds)
        scans = ", ".join(
            sorted({node["Node Type"] for node in page.nodes if "Scan" in node["Node Type"]})
        )
        print(
            f"| {name} | {len(page.statements)} | {slowest:.1f} | {total:.1f} | {page.read} "
            f"({scans}) | {whole:.0f} |",
            flush=True,
        )
    cost()


def cost() -> None:
    """Print what a claim takes without an index, and with each."""
    from tests.integration.database.test_indexes import indexed

    found: dict[str, list[tuple[float, float]]] = {"none": [], "key": [], "operation": []}
    for _ in range(ROUNDS):
        for field, taken in found.items():
            with nullcontext() if field == "none" else indexed(field):
                taken.append(claims())
    for field, taken in found.items():
        microseconds, wal = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"index {field}: a claim takes {microseconds:.0f} us and {wal:.0f} bytes of WAL")


def claims() -> tuple[float, float]:
    """Return the median time of a claim in microseconds, and its WAL in bytes."""
    from django.db import connection

    from django_idempotency.claims import ClaimRequest
    from django_idempotency.conf import stores
    from django_idempotency.keys import new_key, record_id

    store, times = stores["default"], []
    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")
        cursor.execute("SELECT pg_current_wal_insert_lsn()")
        [(before,)] = cursor.fetchall()
        for number in range(CLAIMS):
            key = new_key()
            operation = f"POST shop:{number % 20}"
            request = ClaimRequest(record_id("http", "s", key), "s", key, operation)
            began = time.perf_counter()
            store.claim(request)
            times.append(time.perf_counter() - began)
        cursor.execute("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", [before])
        [(wal,)] = cursor.fetchall()
    return statistics.median(times) * 1e6, float(wal) / CLAIMS


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
