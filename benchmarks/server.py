"""
B1 and B2 behind gunicorn: 2 workers of 4 threads, one INSERT on PostgreSQL, 16 connections.

Requests per second, latencies, and the CPU time of the workers.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.environments import OURS, python_of
from benchmarks.figures import Target, percentile, plot, ratios, save, short, table, verdicts
from benchmarks.load import payment, send_all
from benchmarks.servers import SOCKETS, durable_postgres
from benchmarks.site.variants import VARIANTS
from benchmarks.worker import VARIANT
from tests.services.gunicorn import Gunicorn
from tests.services.postgres import PostgresServer
from tests.services.redis import RedisServer

#: No variant of the project: the server itself.
ALONE = "gunicorn alone"
NAMES = (
    ALONE,
    *("bare", "floor joined", "floor single", "floor Redis"),
    *("joined", "single", "Redis", "plain bare", "plain joined", "plain Redis"),
    *("bare (drf-idempotency)", "drf-idempotency, database", "drf-idempotency, Redis"),
    *("bare (drf-idempotencykey)", "drf-idempotencykey"),
    *("bare (django-idempotency-key)", "django-idempotency-key, Redis"),
)
GUARDED = ("joined", "single", "Redis", "plain joined", "plain Redis")
#: Its one lock is for all keys, and whoever waits for it too long is refused.
REFUSING = {"django-idempotency-key, Redis"}
REQUESTS, RACES = 400, 5
HEADS = (
    *("variant", "first ×", "per s", "p50 ms", "p99 ms", "CPU µs", "refused %"),
    *("replay ×", "per s", "p50 ms", "p99 ms", "CPU µs", "effects of 8"),
)


class Served(Gunicorn):
    """A variant behind gunicorn, in its own environment, with a database of its own."""

    def __init__(
        self, number: int, name: str, postgres: PostgresServer, redis: RedisServer
    ) -> None:
        self.variant, self.database = name, f"server{number}"
        self._environment = OURS if name == ALONE else VARIANTS[name].environment
        self._postgres = postgres
        postgres.create_database(self.database)
        settings = postgres.django_settings(self.database) | {"HOST": SOCKETS, "OPTIONS": {}}
        env = {
            VARIANT: name,
            "BENCHMARK_DATABASE": json.dumps(settings),
            "BENCHMARK_REDIS": f"{redis.url}/{number % 16}",
        }
        app = f"benchmarks.site.{'nothing' if name == ALONE else 'wsgi'}:application"
        super().__init__(
            app, env=env, workers=2, threads=4, options=["--preload", "--keep-alive", "60"]
        )

    def _command(self) -> list[str]:
        return [python_of(self._environment), *super()._command()[1:]]

    def load(self, keys: list[str]) -> dict[str, Any]:
        """Send a request for each key."""
        before = self._cpu_seconds()
        answer = send_all(self.port, [payment(key) for key in keys])
        answer["cpu_us"] = (self._cpu_seconds() - before) / len(keys) * 1e6
        if answer["refused"] and self.variant not in REFUSING:
            raise RuntimeError(f"{self.variant} refused {answer['refused']} of {len(keys)}")
        return answer

    def effects(self) -> int:
        """Send one key 8 times at once, and return how many payments there are of it."""
        key = str(uuid.uuid4())
        send_all(self.port, [payment(key)] * 8, connections=8)
        url = self._postgres.url.replace("/postgres?", f"/{self.database}?")
        with psycopg.connect(url) as session:
            query = "SELECT count(*) FROM site_payment WHERE key = %s"
            found = session.execute(query, [key]).fetchone()
        assert found is not None
        return int(found[0])

    def _cpu_seconds(self) -> float:
        """Return what the workers have used of the CPU."""
        ticks = 0
        for pid in self.worker_pids():
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def run(count: int, names: Iterable[str] = NAMES) -> str:
    """Measure so many rounds, save the figures, and return the tables."""
    answers: dict[str, dict[str, list[Any]]] = {}
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres())
        redis = stack.enter_context(RedisServer())
        served = [
            stack.enter_context(Served(number, name, postgres, redis))
            for number, name in enumerate(names)
        ]
        for one in served:  # each thread opens its connection, and prepares its statements
            one.load(keys := [str(uuid.uuid4()) for _ in range(REQUESTS)])
            one.load(keys)
            answers[one.variant] = {"first": [], "replay": []}
        turns = random.Random(1)  # noqa: S311
        for _ in range(count):
            new = {one.variant: [str(uuid.uuid4()) for _ in range(REQUESTS)] for one in served}
            for part in ("first", "replay"):
                for one in turns.sample(served, len(served)):
                    answers[one.variant][part].append(one.load(new[one.variant]))
        races = {
            one.variant: [one.effects() for _ in range(RACES)]
            for one in served
            if one.variant != ALONE
        }
    times = {
        name: {
            part: [1 / one["per_second"] for one in answers[name][part]]
            for part in ("first", "replay")
        }
        for name in answers
    }
    rates = {
        name: {part: ratios(times[_bare(name)]["first"], taken) for part, taken in each.items()}
        for name, each in times.items()
    }
    targets = list(_targets(rates, times, answers))
    save("server", {"rounds": short(answers), "effects_of_8": races}, targets)
    for part in ("first", "replay"):
        bars = {name: rates[name][part] for name in answers if name != _bare(name)}
        title = f"{part.title()} requests per second under gunicorn"
        plot(
            f"server-{part}",
            title,
            bars,
            unit="× of the bare view; more is better",
            ours=set(GUARDED),
        )
    rows = [_row(name, answers[name], rates[name], races.get(name)) for name in answers]
    title = f"Behind gunicorn: requests per second, × of the bare view, {count} rounds"
    return "\n".join((table(title, HEADS, rows), verdicts(targets)))


def _bare(name: str) -> str:
    return "bare" if name == ALONE else VARIANTS[name].bare


def _row(name: str, answers: Any, rates: Any, races: list[int] | None) -> list[object]:
    row: list[object] = [name]
    for part in ("first", "replay"):
        us = _all_us(answers[part])
        row += [
            rates[part],
            round(statistics.median(one["per_second"] for one in answers[part])),
            percentile(us, 50) / 1000,
            percentile(us, 99) / 1000,
            round(statistics.median(one["cpu_us"] for one in answers[part])),
        ]
        if part == "first":
            row.append(100 * sum(one["refused"] for one in answers[part]) / len(us) or None)
    return [*row, races and ", ".join(map(str, sorted(set(races))))]


def _all_us(rounds: list[Any]) -> list[float]:
    return [us for one in rounds for us in one["us"]]


def _targets(rates: Any, times: Any, answers: Any) -> Iterable[Target]:
    least = {"joined": 0.65, "single": 0.75}
    for name, limit in least.items():
        if name in rates:
            yield Target(f"first, {name}, × bare", rates[name]["first"], at_least=limit)
    rival = "drf-idempotency, database"
    for name in ("joined", "single"):
        if {name, rival} <= set(times):
            faster = ratios(times[rival]["first"], times[name]["first"])
            yield Target(f"first, {name}, × {rival}", faster, at_least=2.0)
    for name in GUARDED:
        if name in rates:
            limit = 2.5 if name.startswith("plain") else 2.0
            yield Target(f"replay, {name}, × bare", rates[name]["replay"], at_least=limit)
            us = _all_us(answers[name]["replay"])
            slowest = percentile(us, 99) / percentile(us, 50)
            yield Target(f"replay, {name}, p99 ÷ p50", slowest, at_most=5.0)
