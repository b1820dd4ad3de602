"""B5: a store's claim + complete and a duplicate, in tables of 10 thousand to 5 million records."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg

from benchmarks.environments import OURS
from benchmarks.figures import Target, medians, ratios, save, short, table, verdicts
from benchmarks.servers import SOCKETS, durable_postgres, fill, session, written
from benchmarks.workers import Worker, rounds

SIZES = (10_000, 1_000_000, 5_000_000)
HEADS = (
    *("records", "claim + complete ×", "µs", "CPU µs", "bytes of WAL"),
    *("duplicate ×", "µs", "CPU µs", "bytes of WAL"),
)
#: How many operations the WAL is of; the server itself writes some now and then.
WRITTEN = 100


def run(count: int, sizes: Sequence[int] = SIZES) -> str:
    """Measure so many rounds, save the figures, and return the tables."""
    wal: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres())
        workers = []
        for size in sizes:
            postgres.create_database(name := f"of{size}")
            database = postgres.django_settings(name) | {"HOST": SOCKETS, "OPTIONS": {}}
            env = {"BENCHMARK_DATABASE": json.dumps(database), "BENCHMARK_REDIS": ""}
            worker = Worker("benchmarks.stores_worker", "ours PostgreSQL", OURS, env)
            worker.variant = f"{size:,}"
            workers.append(stack.enter_context(worker))
            worker.ask("first", n=1)  # the table is there
            with session(postgres, name) as filling:
                fill(filling, size, expired=False)
                filling.execute("VACUUM ANALYZE idempotency_record")
        with session(postgres, "postgres") as watching:
            watching.execute("CHECKPOINT")
            answers = rounds(workers, count, {"first": {"n": 200}, "replay": {"n": 200}})
            for worker in workers:
                found = wal[worker.variant] = {}
                for part in ("first", "replay"):
                    found[part] = min(_wal(watching, worker, part) for _ in range(5))
    us = medians(answers)
    smallest, largest = f"{sizes[0]:,}", f"{sizes[-1]:,}"
    targets = list(_targets(us, wal, smallest, largest))
    save("growth", {"rounds": short(answers), "wal": wal}, targets)
    rows = []
    for name, each in us.items():
        row: list[object] = [name]
        for part in ("first", "replay"):
            cpu = statistics.median(one["cpu_us"] for one in answers[name][part])
            row += [
                ratios(each[part], us[smallest][part]),
                round(statistics.median(each[part])),
                round(cpu),
                round(wal[name][part]),
            ]
        rows.append(row)
    title = f"B5: growth, × of {smallest} records, {count} rounds"
    return "\n".join((table(title, HEADS, rows), verdicts(targets)))


def _wal(watching: psycopg.Connection[Any], worker: Worker, part: str) -> float:
    before = written(watching)
    worker.ask(part, n=WRITTEN)
    return (written(watching) - before) / WRITTEN


def _targets(us: Any, wal: Any, smallest: str, largest: str) -> Iterator[Target]:
    for part, what in {"first": "claim + complete", "replay": "duplicate"}.items():
        ratio = ratios(us[largest][part], us[smallest][part])
        yield Target(f"{what} at {largest}, × of {smallest}", ratio, at_most=1.25)
    yield Target("duplicate, bytes of WAL", max(one["replay"] for one in wal.values()), at_most=0)
