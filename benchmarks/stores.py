"""B3: a store's claim + complete and the claim of a duplicate, beside the bare driver by hand."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.environments import OURS
from benchmarks.figures import Target, medians, ratios, save, short, table, verdicts
from benchmarks.servers import SOCKETS, durable_postgres
from benchmarks.workers import Worker, rounds
from tests.services.redis import RedisServer

#: At most so many times of the bare driver: claim + complete, and a duplicate.
STORES = {"PostgreSQL": (1.3, 1.0), "SQLite": (1.5, 3.0), "Redis": (1.2, 1.3)}
HEADS = (
    "store",
    "claim + complete ×",
    "µs",
    "CPU µs",
    "duplicate ×",
    "µs",
    "CPU µs",
    "owners of 8",
)


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
        races = {
            worker.variant.removeprefix("ours "): worker.ask("race", times=5)
            for worker in workers
            if worker.variant.startswith("ours")
        }
    targets = list(_targets(answers))
    save("stores", {"rounds": short(answers), "owners_of_8": races}, targets)
    title = f"B3: a store alone, × of the bare driver by hand, {count} rounds"
    rows = [
        [*_row(name, answers), ", ".join(map(str, sorted(set(races[name]))))] for name in STORES
    ]
    return "\n".join((table(title, HEADS, rows), verdicts(targets)))


def _targets(answers: Any) -> Iterator[Target]:
    found = medians(answers)
    for name, limits in STORES.items():
        for part, limit in zip(("first", "replay"), limits, strict=True):
            ratio = ratios(found[f"ours {name}"][part], found[f"floor {name}"][part])
            what = {"first": "claim + complete", "replay": "duplicate"}[part]
            yield Target(f"{name}, {what}, × by hand", ratio, at_most=limit)
    cpu = statistics.median(one["cpu_us"] for one in answers["ours PostgreSQL"]["first"])
    yield Target("PostgreSQL, claim + complete, CPU µs", cpu, at_most=200)


def _row(name: str, answers: Any) -> list[object]:
    found = medians(answers)
    row: list[object] = [name]
    for part in ("first", "replay"):
        ours, floor = (found[f"{kind} {name}"][part] for kind in ("ours", "floor"))
        cpu = statistics.median(one["cpu_us"] for one in answers[f"ours {name}"][part])
        row += [ratios(ours, floor), round(statistics.median(ours)), round(cpu)]
    return row
