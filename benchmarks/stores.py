"""B3: a store's claim + complete and the claim of a duplicate, beside the bare driver by hand."""

from __future__ import annotations

import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.environments import OURS
from benchmarks.figures import medians, ratios, save, table
from benchmarks.servers import SOCKETS, durable_postgres
from benchmarks.workers import Worker, rounds
from tests.services.redis import RedisServer

STORES = ("PostgreSQL", "SQLite", "Redis")
HEADS = ("store", "claim + complete ×", "µs", "CPU µs", "duplicate ×", "µs", "CPU µs")


def run(count: int) -> str:
    """Measure so many rounds, save the figures, and return the table."""
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres())
        redis = stack.enter_context(RedisServer())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = []
        for number, name in enumerate(STORES):
            for kind in ("ours", "floor"):
                if name == "SQLite":
                    path = str(folder / f"{kind}.sqlite3")
                    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": path}
                else:
                    postgres.create_database(base := f"{kind}{number}")
                    database = postgres.django_settings(base) | {"HOST": SOCKETS, "OPTIONS": {}}
                env = {
                    "BENCHMARK_DATABASE": json.dumps(database),
                    "BENCHMARK_REDIS": f"{redis.url}/{kind == 'ours':d}",
                }
                module = "benchmarks.stores_worker"
                workers.append(stack.enter_context(Worker(module, f"{kind} {name}", OURS, env)))
        answers = rounds(workers, count, {"first": {"n": 200}, "replay": {"n": 200}})
    save("stores", {"rounds": answers})
    return table(
        f"B3: a store alone, × of the bare driver by hand, {count} rounds",
        HEADS,
        [_row(name, answers) for name in STORES],
    )


def _row(name: str, answers: Any) -> list[object]:
    found, row = medians(answers), [name]
    for part in ("first", "replay"):
        ours, floor = (found[f"{kind} {name}"][part] for kind in ("ours", "floor"))
        cpu = statistics.median(one["cpu_us"] for one in answers[f"ours {name}"][part])
        row += [ratios(ours, floor), round(statistics.median(ours)), round(cpu)]
    return row
