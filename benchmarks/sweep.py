"""
The sweep beside claims, on a PostgreSQL of its own: ``python -m benchmarks.sweep [rows] [share]``.

Claims run all the time; windows with the sweep at work alternate with windows without. Printed are
the claims' latencies in both, their ratios, and what the sweep deleted in a second.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from datetime import timedelta

ROUNDS = 9
WINDOW = 1.5


def main(rows: int, share: float, limit: int) -> None:
    from tests.services.postgres import URL_VARIABLE, PostgresServer

    with PostgresServer(18, durable=True) as server:
        os.environ[URL_VARIABLE] = server.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        for name in ("idempotency", "idempotency_other"):
            server.create_database(name)
        import django

        django.setup()
        measure(rows, share, limit)


def measure(rows: int, share: float, limit: int) -> None:
    from django.core.management import call_command
    from django.db import connection, connections

    from django_idempotency.sweep import sweep
    from tests.proof.database.test_large_sweep import FILL

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(FILL, [rows])
        cursor.execute("VACUUM ANALYZE idempotency_record")
    latencies: dict[bool, list[float]] = {False: [], True: []}
    sweeping, stop = threading.Event(), threading.Event()
    claimant = threading.Thread(target=claim, args=(latencies, sweeping, stop))
    claimant.start()
    swept, worked, ratios = 0, 0.0, []
    for _ in range(ROUNDS):
        before = {on: len(found) for on, found in latencies.items()}
        time.sleep(WINDOW)
        sweeping.set()
        began = time.perf_counter()
        swept += sweep("default", limit=limit, share=share, max_seconds=WINDOW)["default"]
        worked += time.perf_counter() - began
        sweeping.clear()
        if swept >= rows:
            break
        idle, busy = (latencies[on][before[on] :] for on in (False, True))
        ratios.append((p(50, busy) / p(50, idle), p(99, busy) / p(99, idle)))
    stop.set()
    claimant.join()
    connections.close_all()
    print(f"{rows} rows, batches of {limit}, share {share}")
    print(f"swept {swept} in {worked:.1f} s: {swept / worked:.0f} rows/s")
    for on in (False, True):
        found = latencies[on]
        what = "beside the sweep" if on else "alone"
        print(f"claims {what}: p50 {p(50, found):.2f} ms, p99 {p(99, found):.2f} ms, {len(found)}")
    for name, column in (("p50", 0), ("p99", 1)):
        print(f"ratio of {name}: median {statistics.median(r[column] for r in ratios):.2f}")


def claim(
    latencies: dict[bool, list[float]], sweeping: threading.Event, stop: threading.Event
) -> None:
    from django.db import connections

    from django_idempotency.stores.database import DatabaseStore
    from tests.integration.database.claims import claim_request

    store, number = DatabaseStore(), 0
    while not stop.is_set():
        request = claim_request(f"live {number}", lease=timedelta(hours=1))
        on, began = sweeping.is_set(), time.perf_counter()
        store.claim(request)
        if on is sweeping.is_set():
            latencies[on].append((time.perf_counter() - began) * 1000)
        number += 1
        time.sleep(0.001)  # paced: what is measured is the latency, not the load
    connections.close_all()


def p(percent: int, values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


if __name__ == "__main__":
    words = [*sys.argv[1:], *["1000000", "1.0", "1000"][len(sys.argv) - 1 :]]
    main(int(words[0]), float(words[1]), int(words[2]))
