"""
B8: tasks through a prefork worker of 2 processes, on Valkey.

Sent one after the other and then waited for. Beside the tasks per second stands the CPU time of the
sender and of the worker, and how often the work took effect: of one key sent 8 times at once, and
of that key sent once more when it was done.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.environments import OURS, python_of
from benchmarks.figures import Target, plot, ratios, save, table, verdicts
from benchmarks.servers import SOCKETS, durable_postgres
from benchmarks.worker import VARIANT
from benchmarks.workers import Worker, rounds
from tests.services.celery import CeleryWorker
from tests.services.redis import RedisServer

VARIANTS = {
    "bare": OURS,
    "Redis": OURS,
    "PostgreSQL": OURS,
    "celery-once": "celery-once",
    "celery-singleton": "celery-singleton",
}
TASKS = 200
HEADS = (
    *("task", "first ×", "per s", "CPU µs", "again ×", "per s", "CPU µs"),
    *("effects of 8 at once", "and of one later"),
)


class Prefork(CeleryWorker):
    """The worker of a variant, in its own environment."""

    def __init__(self, environment: str, env: dict[str, str]) -> None:
        super().__init__("benchmarks.prefork_app", env=env)
        self._environment = environment

    def _command(self) -> list[str]:
        return [python_of(self._environment), *super()._command()[1:]]

    def cpu_seconds(self) -> float:
        """Return what the worker and its pool have used of the CPU."""
        ticks = 0
        for pid in (self.pid, *self.pool_pids()):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")


class Sender(Worker):
    """The sender of a variant, and the worker."""

    def __init__(self, name: str, environment: str, env: dict[str, str], worker: Prefork) -> None:
        super().__init__("benchmarks.prefork_worker", name, environment, env)
        self._worker = worker

    def ask(self, do: str, **words: Any) -> Any:
        """Send a command; the answer has the worker's CPU time, too."""
        before = self._worker.cpu_seconds()
        answer = super().ask(do, **words)
        if "n" in words:
            answer["cpu_us"] += (self._worker.cpu_seconds() - before) / words["n"] * 1e6
        return answer


def run(count: int) -> str:
    """Measure so many rounds, save the figures, and return the tables."""
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        postgres = stack.enter_context(durable_postgres())
        postgres.create_database("tasks")
        database = postgres.django_settings("tasks") | {
            "HOST": SOCKETS,
            "OPTIONS": {},
            "CONN_MAX_AGE": None,
        }
        senders = []
        for number, (name, environment) in enumerate(VARIANTS.items()):
            env = {
                VARIANT: name,
                "BENCHMARK_REDIS": redis.url.replace("/0", f"/{number}"),
                "BENCHMARK_DATABASE": json.dumps(database),
            }
            worker = stack.enter_context(Prefork(environment, env))
            senders.append(stack.enter_context(Sender(name, environment, env, worker)))
        commands = {"first": {"n": TASKS}, "replay": {"n": TASKS}}
        rounds(senders, 1, commands)  # warm
        answers = rounds(senders, count, commands)
        effects = {sender.variant: sender.ask("effects", times=2) for sender in senders}
    seconds = {
        name: {part: [1 / one["per_second"] for one in found] for part, found in parts.items()}
        for name, parts in answers.items()
    }
    rates = {
        name: {part: ratios(seconds["bare"]["first"], found) for part, found in parts.items()}
        for name, parts in seconds.items()
    }
    targets = list(_targets(rates, effects))
    save("prefork", {"rounds": answers, "effects": effects}, targets)
    bars = {name: each["first"] for name, each in rates.items() if name != "bare"}
    unit = "× of the bare task; more is better"
    plot(
        "prefork", "Tasks per second, prefork worker", bars, unit=unit, ours={"Redis", "PostgreSQL"}
    )
    rows = [_row(name, answers[name], rates[name], effects[name]) for name in answers]
    title = f"B8: tasks per second through a prefork worker, × of the bare task, {count} rounds"
    return "\n".join((table(title, HEADS, rows), verdicts(targets)))


def _row(name: str, answers: Any, rates: Any, effects: Any) -> list[object]:
    row: list[object] = [name]
    for part in ("first", "replay"):
        row += [
            rates[part],
            round(statistics.median(one["per_second"] for one in answers[part])),
            round(statistics.median(one["cpu_us"] for one in answers[part])),
        ]
    found = (sorted(set(effects[when])) for when in ("at_once", "later"))
    return [*row, *(", ".join(map(str, each)) for each in found)]


def _targets(rates: Any, effects: Any) -> Iterator[Target]:
    for name, limit in {"Redis": 0.80, "PostgreSQL": 0.65}.items():
        yield Target(f"first, {name}, × bare", rates[name]["first"], at_least=limit)
        yield Target(f"{name}, effects of a key", max(effects[name]["later"]), at_most=1)
