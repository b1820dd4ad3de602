"""B14: a first request and a replay with PostgreSQL and Redis a network away; round trips."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg

from benchmarks.delay import Delay
from benchmarks.figures import Target, medians, percentile, ratios, save, short, table, verdicts
from benchmarks.servers import durable_postgres
from benchmarks.site.variants import VARIANTS
from benchmarks.worker import timed
from benchmarks.workers import Worker, rounds
from tests.services.postgres import PostgresServer
from tests.services.redis import RedisServer

#: Seconds there and back.
DELAY = 0.0005
#: The floor of each of ours: the same protocol by hand, with pipelines.
FLOORS = {"joined": "floor joined", "single": "floor single", "Redis": "floor Redis"}
NAMES = ("bare", *FLOORS.values(), *FLOORS, "separate", "joined, not prepared")
#: At most so many times of the floor (first), and of the bare view (replay); round trips.
TARGETS: dict[str, tuple[float | None, float | None, int, int]] = {
    "joined": (1.1, 0.45, 4, 1),
    "single": (1.15, 0.55, 3, 2),
}
HEADS = ("variant", "first ×", "p50 µs", "round trips", "replay ×", "p50 µs", "round trips")


def run(count: int) -> str:
    """Measure so many rounds, save the figures, and return the tables."""
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres())
        redis = stack.enter_context(RedisServer())
        ways: dict[str, list[Delay]] = {}
        workers = []
        for number, name in enumerate(NAMES):
            ways[name] = [
                stack.enter_context(Delay(server.port, seconds=DELAY))
                for server in (postgres, redis)
            ]
            workers.append(stack.enter_context(_worker(number, name, ways[name], postgres)))
        answers = rounds(workers, count, {"first": {"n": 100}, "replay": {"n": 100}})
        trips = {worker.variant: _trips(worker, ways[worker.variant]) for worker in workers}
        one = _one(postgres, *ways["bare"][:1])
    found = medians(answers)
    targets = list(_targets(found, trips))
    save("network", {"rounds": short(answers), "trips": trips, "one_us": one}, targets)
    rows = [
        (
            name,
            *(
                cell
                for part in ("first", "replay")
                for cell in (
                    ratios(found[name][part], found["bare"]["first"]),
                    round(percentile([us for it in answers[name][part] for us in it["us"]], 50)),
                    trips[name][part],
                )
            ),
        )
        for name in NAMES
    ]
    floors = [
        (name, *(ratios(found[name][p], found[floor][p]) for p in ("first", "replay")))
        for name, floor in FLOORS.items()
    ]
    return "\n".join(
        (
            table(
                f"B14: one round trip takes {one} µs, × of the bare view, {count} rounds",
                HEADS,
                rows,
            ),
            table("… × of the protocol by hand", ("variant", "first ×", "replay ×"), floors),
            verdicts(targets),
        )
    )


def _worker(number: int, name: str, ways: list[Delay], postgres: PostgresServer) -> Worker:
    database = f"bench{number}"
    postgres.create_database(database)
    to_postgres, to_redis = ways
    way = {"HOST": to_postgres.host, "PORT": str(to_postgres.port)}
    env = {
        "BENCHMARK_DATABASE": json.dumps(postgres.django_settings(database) | way),
        "BENCHMARK_REDIS": f"redis://{to_redis.host}:{to_redis.port}/{number % 16}",
    }
    return Worker("benchmarks.http_worker", name, VARIANTS[name].environment, env)


def _trips(worker: Worker, ways: list[Delay]) -> dict[str, float]:
    """Return how many round trips a request takes."""
    found = {}
    for part in ("first", "replay"):
        before = sum(way.trips for way in ways)
        worker.ask(part, n=20)
        found[part] = round((sum(way.trips for way in ways) - before) / 20, 1)
    return found


def _one(postgres: PostgresServer, way: Delay) -> int:
    """Return the microseconds of one round trip."""
    url = postgres.url.replace(f":{postgres.port}/", f":{way.port}/")
    with psycopg.connect(url, autocommit=True) as session:
        taken = timed(lambda _: session.execute("SELECT 1"), range(200))["us"]
    return round(percentile(taken, 50))


def _targets(found: Any, trips: Any) -> Iterator[Target]:
    for name, (first, replay, *most) in TARGETS.items():
        by_hand = ratios(found[name]["first"], found[FLOORS[name]]["first"])
        yield Target(f"first, {name}, × by hand", by_hand, at_most=first)
        bare = ratios(found[name]["replay"], found["bare"]["first"])
        yield Target(f"replay, {name}, × bare", bare, at_most=replay)
        for part, limit in zip(("first", "replay"), most, strict=True):
            yield Target(f"{part}, {name}, round trips", trips[name][part], at_most=limit)
