"""B8, eager: a task on Redis, beside the same two scripts by hand and other packages."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from benchmarks.environments import OURS
from benchmarks.figures import medians, ratios, save, table
from benchmarks.workers import Worker, rounds
from tests.services.redis import RedisServer

#: The variant, and the environment that it runs in.
VARIANTS = {
    "bare": OURS,
    "by hand": OURS,
    "Redis": OURS,
    "celery-once": "celery-once",
    "celery-singleton": "celery-singleton",
}
HEADS = ("task", "first × bare", "× by hand", "µs", "again × bare", "µs", "CPU µs")


def run(count: int) -> str:
    """Measure so many rounds, save the figures, and return the table."""
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        workers = [
            stack.enter_context(
                Worker(
                    "benchmarks.tasks_worker",
                    name,
                    environment,
                    {"BENCHMARK_REDIS": f"{redis.url}/{number}"},
                )
            )
            for number, (name, environment) in enumerate(VARIANTS.items())
        ]
        answers = rounds(workers, count, {"first": {"n": 200}, "replay": {"n": 200}})
    save("tasks", {"rounds": answers})
    found = medians(answers)
    rows = [
        (
            name,
            ratios(each["first"], found["bare"]["first"]),
            ratios(each["first"], found["by hand"]["first"]),
            round(statistics.median(each["first"])),
            ratios(each["replay"], found["bare"]["first"]),
            round(statistics.median(each["replay"])),
            round(statistics.median(one["cpu_us"] for one in answers[name]["first"])),
        )
        for name, each in found.items()
    ]
    return table(f"B8, eager: × of the bare task, {count} rounds", HEADS, rows)
