"""
B9: a function guarded on DynamoDB, beside Powertools for AWS Lambda.

What counts is the calls on the wire and the client's CPU; the servers are slower than DynamoDB.
dynalite is atomic, so the race runs there. It does not return the item that a failed condition
met, as DynamoDB and moto do: a duplicate is measured on moto.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.environments import OURS
from benchmarks.figures import Target, ratios, save, short, table, verdicts
from benchmarks.workers import Worker, rounds
from tests.services.dynamodb import ENVIRONMENT, Dynalite, LockedMoto

VARIANTS = {"ours": OURS, "powertools": "powertools"}
PARTS = {"first": "dynalite", "replay": "moto"}
HEADS = (
    *("function", "first: calls", "CPU µs", "× powertools", "Python calls"),
    *("duplicate: calls", "CPU µs", "× powertools", "Python calls", "effects of 8"),
)


def run(count: int) -> str:
    """Measure so many rounds, save the figures, and return the tables."""
    answers: dict[str, dict[str, dict[str, list[Any]]]] = {}
    calls: dict[str, dict[str, Any]] = {name: {} for name in VARIANTS}
    races = {}
    with ExitStack() as stack:
        for server in (stack.enter_context(Dynalite()), stack.enter_context(LockedMoto())):
            env = {**ENVIRONMENT, "BENCHMARK_DYNAMODB": server.url}
            workers = [
                stack.enter_context(Worker("benchmarks.dynamodb_worker", name, environment, env))
                for name, environment in VARIANTS.items()
            ]
            answers[server.name] = rounds(workers, count, {"first": {"n": 60}, "replay": {"n": 60}})
            for worker in workers:
                found = worker.ask("calls")
                calls[worker.variant] |= {p: found[p] for p in PARTS if PARTS[p] == server.name}
                if server.name == "dynalite":
                    races[worker.variant] = worker.ask("race", times=5)
    cpu = {
        name: {
            part: [one["cpu_us"] for one in answers[on][name][part]] for part, on in PARTS.items()
        }
        for name in VARIANTS
    }
    targets = list(_targets(calls, cpu))
    save(
        "dynamodb",
        {
            "rounds": {server: short(found) for server, found in answers.items()},
            "calls": calls,
            "effects_of_8": races,
        },
        targets,
    )
    rows = []
    for name in VARIANTS:
        row: list[object] = [name]
        for part in PARTS:
            row += [
                calls[name][part]["wire"],
                round(statistics.median(cpu[name][part])),
                ratios(cpu[name][part], cpu["powertools"][part]),
                calls[name][part]["python"],
            ]
        rows.append([*row, ", ".join(map(str, sorted(set(races[name]))))])
    title = f"B9: DynamoDB, {count} rounds"
    return "\n".join((table(title, HEADS, rows), verdicts(targets)))


def _targets(calls: Any, cpu: Any) -> Iterator[Target]:
    for part, most in {"first": 2, "replay": 1}.items():
        yield Target(f"{part}: calls", calls["ours"][part]["wire"], at_most=most)
    for part in PARTS:
        ratio = ratios(cpu["ours"][part], cpu["powertools"][part])
        yield Target(f"{part}: CPU × powertools", ratio, at_most=0.6)
