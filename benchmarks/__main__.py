"""``python -m benchmarks [TABLE ...] [--rounds N]``: measure, print tables, keep the figures."""

from __future__ import annotations

import argparse
import importlib
import time

TABLES = {
    "http": "B1 and B2: requests and replays",
    "server": "B1 and B2 behind gunicorn",
    "network": "B14: the servers a network away",
    "stores": "B3: a store alone",
    "growth": "B5: a store alone, as the table grows",
    "sweep": "B6: the sweep",
    "herd": "B7: 64 clients at once",
    "tasks": "B8: tasks, eager",
    "prefork": "B8: tasks, through a prefork worker",
    "dynamodb": "B9: DynamoDB",
    "bodies": "B10: fingerprints of bodies",
    "footprint": "B11: start and size",
    "sizing": "B12: what records take",
    "steps": "B13: work in steps",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("tables", nargs="*", help=", ".join(TABLES))
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    if unknown := set(arguments.tables) - set(TABLES):
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    for name in arguments.tables or TABLES:
        started = time.monotonic()
        print(importlib.import_module(f"benchmarks.{name}").run(arguments.rounds), flush=True)
        print(f"({time.monotonic() - started:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
