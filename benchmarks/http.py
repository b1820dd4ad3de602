"""B1 and B2: a first request and a replay, in process, on PostgreSQL over a socket, fsync on."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from benchmarks.figures import medians, percentile, plot, ratios, save, table
from benchmarks.servers import SOCKETS, durable_postgres
from benchmarks.site.variants import VARIANTS, Variant
from benchmarks.workers import Worker, rounds
from tests.services.postgres import PostgresServer
from tests.services.redis import RedisServer

#: The floor of each of ours.
FLOORS = {"joined": "floor joined", "single": "floor single", "Redis": "floor Redis"}
HEADS = (
    *("variant", "first ×", "p50 µs", "p99 µs", "CPU µs", "calls", "ours"),
    *("replay ×", "p50 µs", "p99 µs", "CPU µs", "calls", "ours", "effects of 8"),
)


def run(count: int, names: Iterable[str] = VARIANTS) -> str:
    """Measure so many rounds, save the figures, and return the tables."""
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres())
        redis = stack.enter_context(RedisServer())
        workers = [
            stack.enter_context(_worker(number, name, VARIANTS[name], postgres, redis))
            for number, name in enumerate(names)
        ]
        answers = rounds(workers, count, {"first": {"n": 150}, "replay": {"n": 150}})
        exact = {
            worker.variant: {
                "calls": worker.ask("calls"),
                "statements": worker.ask("statements"),
                "race": worker.ask("race", times=5),
            }
            for worker in workers
        }
    save("http", {"rounds": answers, "exact": exact})
    found = medians(answers)
    rows = [_row(name, answers[name], exact[name], found) for name in answers]
    for part in ("first", "replay"):
        bars = {
            name: ratios(found[name][part], found[VARIANTS[name].bare]["first"])
            for name in answers
            if not name.startswith(("bare", "plain bare"))
        }
        plot(f"http-{part}", f"A {part} request", bars, unit="× of the bare view in atomic()")
    floors = [
        (
            name,
            *(ratios(found[name][p], found[floor][p]) for p in ("first", "replay")),
        )
        for name, floor in FLOORS.items()
        if name in found and floor in found
    ]
    return "\n".join(
        (
            table(
                f"B1, B2: a request, × of the bare view in atomic(), {count} rounds", HEADS, rows
            ),
            table("… × of the protocol by hand", ("variant", "first ×", "replay ×"), floors),
        )
    )


def _worker(
    number: int, name: str, variant: Variant, postgres: PostgresServer, redis: RedisServer
) -> Worker:
    database = f"bench{number}"
    postgres.create_database(database)
    settings = postgres.django_settings(database) | {"HOST": SOCKETS, "OPTIONS": {}}
    env = {
        "BENCHMARK_DATABASE": json.dumps(settings),
        "BENCHMARK_REDIS": f"{redis.url}/{number % 16}",
    }
    return Worker("benchmarks.http_worker", name, variant.environment, env)


def _row(name: str, answers: Any, exact: Any, found: Any) -> list[object]:
    bare = found[VARIANTS[name].bare]["first"]
    row: list[object] = [name]
    for part in ("first", "replay"):
        times = [each for one in answers[part] for each in one["us"]]
        calls = exact["calls"][part]
        row += [
            ratios(found[name][part], bare),
            round(percentile(times, 50)),
            round(percentile(times, 99)),
            round(statistics.median(one["cpu_us"] for one in answers[part])),
            calls["all"],
            calls["ours"] or None,
        ]
    effects = sorted(set(exact["race"]))
    return [*row, ", ".join(map(str, effects))]
