"""B1 and B2: a first request and a replay, in process, on PostgreSQL over a socket, fsync on."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.figures import (
    Target,
    medians,
    percentile,
    plot,
    ratios,
    save,
    short,
    table,
    verdicts,
)
from benchmarks.servers import SOCKETS, durable_postgres
from benchmarks.site.variants import VARIANTS, Variant
from benchmarks.workers import Worker, rounds
from tests.services.postgres import PostgresServer
from tests.services.redis import RedisServer

#: The floor of each of ours.
FLOORS = {
    "joined": "floor joined",
    "joined, async claim": "floor joined",
    "single": "floor single",
    "separate": "floor joined",
    "Redis": "floor Redis",
}
#: At most so many times of the bare view, and of the floor, and so many calls.
FIRST = {
    "joined": (1.55, 1.15, 1700),
    "joined, async claim": (1.4, None, None),
    "single": (1.3, 1.2, 1700),
    "Redis": (1.2, None, None),
}
REPLAY = {
    "joined": (0.45, 1.3, 900),
    "single": (0.55, None, 900),
    "separate": (0.45, 1.3, 900),
    "Redis": (0.45, 1.3, 900),
    "plain joined": (0.40, None, 900),
    "plain single": (0.55, None, 900),
    "plain separate": (0.40, None, 900),
    "plain Redis": (0.40, None, 900),
}
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
    found = medians(answers)
    targets = list(_targets(found, exact))
    save("http", {"rounds": short(answers), "exact": exact}, targets)
    rows = [_row(name, answers[name], exact[name], found) for name in answers]
    for part in ("first", "replay"):
        bars = {
            name: ratios(found[name][part], found[VARIANTS[name].bare]["first"])
            for name in answers
            if not name.startswith(("bare", "plain bare"))
        }
        ours = {name for name in bars if "django_idempotency" in VARIANTS[name].apps}
        title, unit = f"A {part} request, in process", "× of the bare view's time; less is better"
        plot(f"http-{part}", title, bars, unit=unit, ours=ours)
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
            verdicts(targets),
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


def _targets(found: Any, exact: Any) -> Iterator[Target]:
    for part, limits in (("first", FIRST), ("replay", REPLAY)):
        for name, (bare, floor, calls) in limits.items():
            if name not in found:
                continue
            us = found[name][part]
            ratio = ratios(us, found[VARIANTS[name].bare]["first"])
            yield Target(f"{part}, {name}, × bare", ratio, at_most=bare)
            if floor and FLOORS[name] in found:
                ratio = ratios(us, found[FLOORS[name]][part])
                yield Target(f"{part}, {name}, × by hand", ratio, at_most=floor)
            if calls:
                made = exact[name]["calls"][part]["all"]
                yield Target(f"{part}, {name}, calls", made, at_most=calls)
    rival = "drf-idempotency, database"
    for name in ("joined", "single"):
        if {name, rival} <= set(found):
            faster = ratios(found[rival]["first"], found[name]["first"])
            yield Target(f"first, {name}, × faster than {rival}", faster, at_least=2)
