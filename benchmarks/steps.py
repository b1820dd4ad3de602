"""
B13: a step that inserts a row, of attempts that have 1, 5, 20 and 100 steps.

Beside ours stand the bare step in ``atomic()``, the same four statements by hand, and the
transaction of DBOS, if it can be installed. Each figure is of one step: the claim and the
completion of an attempt are no part of its time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from contextlib import ExitStack
from typing import Any

from benchmarks.environments import OURS
from benchmarks.figures import Target, medians, ratios, save, short, table, verdicts
from benchmarks.servers import SOCKETS, durable_postgres, session, written
from benchmarks.steps_worker import STEPS
from benchmarks.workers import Worker, rounds
from tests.services import MissingService
from tests.services.postgres import PostgresServer

VARIANTS = {"bare": OURS, "by hand": OURS, "steps": OURS, "DBOS": "dbos"}
#: Attempts of a round, by the number of their steps.
ATTEMPTS = {1: 200, 5: 60, 20: 20, 100: 5}
#: The tables whose updates are notes.
NOTED = {"by hand": "by_hand", "steps": "idempotency_record"}
HEADS = ("a step", "of", "× bare", "× by hand", "µs", "WAL bytes", "HOT %")


def run(count: int) -> str:
    """Measure so many rounds, save the figures, and return the table."""
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres())
        workers = []
        for name, environment in VARIANTS.items():
            try:
                workers.append(stack.enter_context(_worker(postgres, name, environment)))
            except (MissingService, subprocess.CalledProcessError) as error:
                print(f"{name} is left out: {error}")
        commands = {str(steps): {"n": n} for steps, n in ATTEMPTS.items()}
        answers = rounds(workers, count, commands)
        stored = {worker.variant: _stored(postgres, worker) for worker in workers}
    found = medians(answers)
    targets = _targets(found)
    save("steps", {"rounds": short(answers), "stored": stored}, targets)
    rows = [
        (
            name,
            steps,
            ratios(each[str(steps)], found["bare"][str(steps)]),
            ratios(each[str(steps)], found["by hand"][str(steps)]),
            round(statistics.median(each[str(steps)])),
            round(stored[name][str(steps)]["wal"]),
            stored[name][str(steps)].get("hot"),
        )
        for name, each in found.items()
        for steps in STEPS
    ]
    title = f"B13: one step, {count} rounds"
    return "\n".join((table(title, HEADS, rows), verdicts(targets)))


def _worker(postgres: PostgresServer, name: str, environment: str) -> Worker:
    postgres.create_database(_base(name))
    database = postgres.django_settings(_base(name)) | {"HOST": SOCKETS, "OPTIONS": {}}
    env = {"BENCHMARK_DATABASE": json.dumps(database)}
    return Worker("benchmarks.steps_worker", name, environment, env)


def _base(name: str) -> str:
    return f"steps_{name.replace(' ', '_').lower()}"


def _stored(postgres: PostgresServer, worker: Worker) -> dict[str, dict[str, float]]:
    """
    Return what one step writes, with its part of claim and completion, by the number of steps.

    Other workers are idle meanwhile.
    """
    found: dict[str, dict[str, float]] = {}
    with session(postgres, _base(worker.variant)) as watching:
        for steps in STEPS:
            updates, began = _updates(watching, worker.variant), written(watching)
            worker.ask(str(steps), n=ATTEMPTS[steps])
            done = ATTEMPTS[steps] * steps
            worker.ask("flush")
            found[str(steps)] = {"wal": (written(watching) - began) / done}
            after = _updates(watching, worker.variant)
            if after[0] > updates[0]:
                hot = (after[1] - updates[1]) / (after[0] - updates[0])
                found[str(steps)]["hot"] = 100 * hot
    return found


def _updates(watching: Any, variant: str) -> tuple[float, float]:
    """Return how many rows were updated, and how many of them in their page."""
    watching.execute("SELECT pg_stat_force_next_flush()")
    row = watching.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s",
        [NOTED.get(variant, "")],
    ).fetchone()
    return (0.0, 0.0) if row is None else (float(row[0]), float(row[1]))


def _targets(found: dict[str, dict[str, list[float]]]) -> list[Target]:
    ours, by_hand, bare = found["steps"], found["by hand"], found["bare"]
    syncs = statistics.median(bare["1"]) >= 2000  # a disk that syncs each commit
    most = 1.35 if syncs else 2.0
    targets = [
        Target(f"steps of {n}, × by hand", ratios(ours[str(n)], by_hand[str(n)]), at_most=1.15)
        for n in STEPS
    ]
    targets.append(Target("a step, × bare", ratios(ours["1"], bare["1"]), at_most=most))
    for n, most in ((20, 1.2), (100, 1.5)):
        name = f"a step of {n}, × a step of one"
        targets.append(Target(name, ratios(ours[str(n)], ours["1"]), at_most=most))
    if "DBOS" in found:
        times = ratios(found["DBOS"]["5"], ours["5"])
        targets.append(Target("a step of 5 of DBOS, × ours", times, at_least=4))
    return targets
