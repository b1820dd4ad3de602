"""B8, eager: a task on Redis, beside the same two scripts by hand and other packages."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from benchmarks.environments import OURS
from benchmarks.figures import Target, medians, ratios, save, short, table, verdicts
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
HEADS = ("task", "first × bare", "× by hand", "µs", "again × bare", "µs", "CPU µs", "effects of 8")


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
        races = {worker.variant: worker.ask("race", times=5) for worker in workers}
    found = medians(answers)
    by_hand = ratios(found["Redis"]["first"], found["by hand"]["first"])
    targets = [
        Target("Redis, × by hand", by_hand, at_most=1.15),
        Target("Redis, effects of 8 at once", max(races["Redis"]), at_most=1),
    ]
    save("tasks", {"rounds": short(answers), "effects_of_8": races}, targets)
    rows = [
        (
            name,
            ratios(each["first"], found["bare"]["first"]),
            ratios(each["first"], found["by hand"]["first"]),
            round(statistics.median(each["first"])),
            ratios(each["replay"], found["bare"]["first"]),
            round(statistics.median(each["replay"])),
            round(statistics.median(one["cpu_us"] for one in answers[name]["first"])),
            ", ".join(map(str, sorted(set(races[name])))),
        )
        for name, each in found.items()
    ]
    title = f"B8, eager: × of the bare task, {count} rounds"
    return "\n".join((table(title, HEADS, rows), verdicts(targets)))
