"""B11: what the package adds to a start, and what a record takes on PostgreSQL."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import psycopg

from benchmarks.environments import OURS, ROOT
from benchmarks.figures import Target, save, verdicts
from benchmarks.servers import SOCKETS, durable_postgres
from benchmarks.workers import Worker

START = """
import sys, time
from django.conf import settings
apps = ["django.contrib.contenttypes", "django.contrib.auth"]
if "idempotency" in sys.argv: apps.append("django_idempotency")
settings.configure(INSTALLED_APPS=apps, DATABASES={"default": {
    "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, USE_TZ=True)
import django
started = time.process_time()
django.setup()
print((time.process_time() - started) * 1000)
"""
IMPORT = """
import time
import django.conf
started = time.process_time()
import django_idempotency
print((time.process_time() - started) * 1000)
"""
RECORDS = 20_000


def run(count: int) -> str:
    """Measure so many starts of each, save the figures, and return the table."""
    with_app, without = [], []
    for _ in range(count):
        without.append(_printed(START))
        with_app.append(_printed(START, "idempotency"))
    imported = [_printed(IMPORT) for _ in range(count)]
    size = _bytes_per_record()
    more = statistics.median(a - b for a, b in zip(with_app, without, strict=True))
    targets = [
        Target(
            "import django_idempotency after Django, CPU ms",
            statistics.median(imported),
            at_most=5,
        ),
        Target("django.setup(), more CPU ms with the app", more, at_most=10),
        Target("bytes of a record beside its result (PostgreSQL, with indexes)", size, at_most=270),
    ]
    figures = {"with": with_app, "without": without, "import": imported, "bytes": size}
    save("footprint", figures, targets)
    return verdicts(targets, f"B11: start and size, {count} rounds")


def _printed(code: str, *words: str) -> float:
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    return float(done.stdout)


def _bytes_per_record() -> float:
    with durable_postgres() as postgres:
        postgres.create_database("records")
        database = postgres.django_settings("records") | {"HOST": SOCKETS, "OPTIONS": {}}
        env = {"BENCHMARK_DATABASE": json.dumps(database), "BENCHMARK_REDIS": ""}
        with Worker("benchmarks.stores_worker", "ours PostgreSQL", OURS, env) as worker:
            for _ in range(RECORDS // 1000):
                worker.ask("first", n=1000)
        url = postgres.url.replace("/postgres?", "/records?")
        with psycopg.connect(url, autocommit=True) as session:
            session.execute("VACUUM FULL idempotency_record")
            total = session.execute(
                "SELECT pg_total_relation_size('idempotency_record'), count(*), "
                "sum(octet_length(result)) FROM idempotency_record"
            ).fetchone()
            assert total is not None
            return float(total[0] - total[2]) / float(total[1])
