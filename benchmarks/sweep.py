"""
B6: the sweep beside claims, on PostgreSQL with 5 million records, of which 4 million expired.

One process claims and completes all the time, another sweeps: windows with the sweep at work
alternate with windows without. First paced, as the task for beat is, then as fast as it can.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.environments import OURS
from benchmarks.figures import Target, percentile, save, table, verdicts
from benchmarks.servers import SOCKETS, durable_postgres, fill, session, written
from benchmarks.workers import Worker
from django_idempotency.tasks import SHARE
from tests.services.postgres import PostgresServer

EXPIRED, LIVE = 4_000_000, 1_000_000
#: Rows of a table that one DELETE clears, and of another that the sweep clears: bytes of WAL.
COMPARED = 200_000
WINDOW = 1.5
#: Neither a checkpoint nor autovacuum within the run: they would slow down some windows only.
OPTIONS = {"max_wal_size": "16GB", "checkpoint_timeout": "1h", "autovacuum": "off"}
HEADS = (
    *("sweep", "rows per s", "statement p50 ms", "p99 ms"),
    *("claims' p50 ms: alone", "beside", "×", "p99 ms: alone", "beside", "×"),
)


def run(count: int, expired: int = EXPIRED, live: int = LIVE) -> str:
    """Measure so many windows at most, save the figures, and return the tables."""
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres(OPTIONS))
        postgres.create_database("sweep")
        claims, sweeper = (
            stack.enter_context(_worker(name, postgres)) for name in ("claims", "sweep")
        )
        claims.ask("hot")  # the table is there
        with session(postgres, "sweep") as filling:
            fill(filling, expired, expired=True)
            fill(filling, live, expired=False)
            filling.execute("VACUUM ANALYZE idempotency_record")
        claims.ask("claims", seconds=0.5)
        windows = {
            "paced": [_window(claims, sweeper, SHARE) for _ in range(count)],
            "flat out": [],
        }
        while len(windows["flat out"]) < count:
            window = _window(claims, sweeper, 1.0)
            whole = window["seconds"] > 0.9 * WINDOW
            if whole or not windows["flat out"]:
                windows["flat out"].append(window)
            if not whole:
                break  # nothing is left
        hot = claims.ask("hot")
        wal = _wal(postgres, stack)
    figures = {name: _figures(found) for name, found in windows.items()}
    targets = list(_targets(figures, hot, wal))
    kept = {
        name: [{key: window[key] for key in window if key != "us"} for window in found]
        for name, found in windows.items()
    }
    save("sweep", {"windows": kept, "hot": hot, "wal": wal, "rows": expired + live}, targets)
    rows = [(name, *found.values()) for name, found in figures.items()]
    title = f"B6: the sweep of {expired / 1e6:g} of {(expired + live) / 1e6:g} million records"
    return "\n".join((table(title, HEADS, rows), verdicts(targets)))


def _worker(name: str, postgres: PostgresServer, database: str = "sweep") -> Worker:
    settings = postgres.django_settings(database) | {"HOST": SOCKETS, "OPTIONS": {}}
    env = {"BENCHMARK_DATABASE": json.dumps(settings)}
    return Worker("benchmarks.sweep_worker", name, OURS, env)


def _window(claims: Worker, sweeper: Worker, share: float) -> dict[str, Any]:
    """Claim alone, then beside the sweep."""
    alone = claims.ask("claims", seconds=WINDOW)
    claims.tell("claims", seconds=WINDOW)
    swept = sweeper.ask("sweep", seconds=WINDOW, share=share)
    beside = claims.answer()
    figures = {
        f"{name}_p{hundredth}_us": percentile(found, hundredth)
        for name, found in (("alone", alone), ("beside", beside))
        for hundredth in (50, 99)
    }
    return {**swept, **figures}


def _figures(windows: list[Any]) -> dict[str, float]:
    def median(name: str) -> float:
        return float(statistics.median(one[name] for one in windows)) / 1000

    statements = [us / 1000 for one in windows for us in one["us"]]
    found = {
        "per_second": sum(one["swept"] for one in windows) / sum(one["seconds"] for one in windows),
        "p50": percentile(statements, 50),
        "p99": percentile(statements, 99),
    }
    for part in ("p50", "p99"):
        found |= {
            f"alone {part}": median(f"alone_{part}_us"),
            f"beside {part}": median(f"beside_{part}_us"),
            f"ratio {part}": statistics.median(
                one[f"beside_{part}_us"] / one[f"alone_{part}_us"] for one in windows
            ),
        }
    return found


def _wal(postgres: PostgresServer, stack: ExitStack) -> dict[str, float]:
    """
    Return the bytes of WAL per row, by the sweep and by one DELETE, the VACUUM after it included.

    A sweep looks over its rows once more at its end, and does a part of what is left to VACUUM.
    """
    found = {}
    for name in ("sweep", "delete"):
        postgres.create_database(f"wal_{name}")
        worker = stack.enter_context(_worker(name, postgres, f"wal_{name}"))
        worker.ask("hot")
        with session(postgres, f"wal_{name}") as filling:
            fill(filling, COMPARED, expired=True)
            before = written(filling)
            if name == "sweep":
                worker.ask("sweep", seconds=600, share=1.0)
            else:
                filling.execute("DELETE FROM idempotency_record WHERE expires_at <= now()")
            filling.execute("VACUUM idempotency_record")
            found[name] = (written(filling) - before) / COMPARED
    return found


def _targets(figures: Any, hot: Any, wal: Any) -> Iterator[Target]:
    flat, paced = figures["flat out"], figures["paced"]
    yield Target("flat out, rows per s", flat["per_second"], at_least=400_000)
    yield Target("flat out, a statement, p99 ms", flat["p99"], at_most=10)
    yield Target("paced, rows per s", paced["per_second"], at_least=80_000)
    for part in ("p50", "p99"):
        yield Target(f"paced, claims' {part}, × alone", paced[f"ratio {part}"], at_most=1.5)
    yield Target("WAL per row, × of one DELETE", wal["sweep"] / wal["delete"], at_most=1.05)
    yield Target("HOT completions, %", 100 * hot["hot"] / hot["updates"], at_least=95)
