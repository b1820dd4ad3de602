"""`make test`: the suite on each database, then in a browser; with --coverage, measured."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

import pytest

from tests.services import LEG_VARIABLE, LEGS
from tests.services.postgres import URL_VARIABLE
from tests.services.processes import ROOT

TITLES = {
    "postgres18": "PostgreSQL 18: the whole suite",
    "postgres16": "PostgreSQL 16, or the system's: the store and real processes",
    "sqlite": "SQLite in a file: the store, the engine, the rules of HTTP and real processes",
    "mariadb": "MariaDB: the store, the engine and the rules of HTTP",
    "browser": "Chromium, on PostgreSQL 18: the checkout, the admin, accessibility",
}
# What the legs after the first run: the tests whose outcome another database can change, and those
# that are about the browser.
FOLDERS = {
    "postgres16": [
        "tests/acceptance/processes/test_crash_points.py",
        "tests/integration/database/test_contract.py",
        "tests/integration/database",
        "tests/acceptance/processes",
    ],
    "sqlite": [
        "tests/acceptance/processes/test_crash_points.py",
        "tests/integration/database/test_contract.py",
        "tests/integration/database",
        "tests/acceptance/processes",
        "tests/unit/core/test_run.py",
        "tests/unit/core/test_attempt.py",
        "tests/unit/core/test_coroutines.py",
        "tests/unit/core/test_transactions.py",
        "tests/unit/http/test_f_work.py",
        "tests/unit/http/test_f_failures.py",
        "tests/unit/http/test_e_in_progress.py",
        "tests/unit/views/test_atomic_requests.py",
        "tests/unit/views/test_waiting.py",
        "tests/unit/forms/test_double_click.py",
        "tests/unit/project/test_guarantees.py",
    ],
    "mariadb": [
        "tests/acceptance/processes/test_crash_points.py",
        "tests/integration/database/test_contract.py",
        "tests/integration/database",
        "tests/acceptance/processes",
        "tests/unit/core/test_run.py",
        "tests/unit/core/test_attempt.py",
        "tests/unit/core/test_coroutines.py",
        "tests/unit/core/test_transactions.py",
        "tests/unit/http/test_f_work.py",
        "tests/unit/http/test_f_failures.py",
        "tests/unit/http/test_e_in_progress.py",
        "tests/unit/views/test_atomic_requests.py",
        "tests/unit/views/test_waiting.py",
        "tests/unit/forms/test_double_click.py",
    ],
    "browser": ["tests/acceptance/browser"],
}
WORKERS = "2"


def main() -> int:
    """Run the legs; 0 if all of them passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.services.legs",
        description=__doc__,
        epilog="What follows -- goes to pytest: python -m tests.services.legs sqlite -- -k R42",
    )
    parser.add_argument("legs", nargs="*", metavar="leg", help=f"of {', '.join(LEGS)}; all")
    parser.add_argument("--coverage", action="store_true")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments, rest = parser.parse_args(words[:end]), words[end + 1 :]
    chosen = arguments.legs or list(LEGS)
    if unknown := set(chosen) - set(LEGS):
        parser.error(f"no such leg: {', '.join(sorted(unknown))}")
    if URL_VARIABLE in os.environ and {"postgres18", "postgres16"} <= set(chosen):
        print(f"{URL_VARIABLE} is set: its server takes the place of both PostgreSQL legs")
        chosen.remove("postgres16")

    measure = arguments.coverage
    if measure:
        _coverage("erase")
    failed, closing = False, {}
    for index, leg in enumerate(chosen):
        whole = index == 0 and leg != "browser"
        options = rest or ([] if whole else FOLDERS[leg])
        code, closing[leg] = _run(leg, options, measure=measure)
        # What is asked for after -- need not be in every leg.
        passed = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED if rest else 0}
        failed = failed or code not in passed
    if measure:
        print("\n==> coverage of all legs", flush=True)
        _coverage("combine", "--quiet")
        _coverage("report")
    print("\n==> results", flush=True)
    for leg, line in closing.items():
        print(f"{leg}\n{line}", flush=True)
    return int(failed)


def _run(leg: str, options: list[str], *, measure: bool) -> tuple[int, str]:
    """Run one leg, show it as it goes; its exit code and pytest's closing line."""
    print(f"\n{'#' * 80}\n# {TITLES[leg]}\n{'#' * 80}", flush=True)
    runner = ["-m", "coverage", "run", "-m", "pytest"] if measure else ["-m", "pytest"]
    command = [sys.executable, *runner, "-n", WORKERS, "--dist", "loadgroup", *options]
    started = time.monotonic()
    last = ""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, LEG_VARIABLE: leg},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if re.match(r"=+ .* in [\d.]+s.* =+$", line):
                last = line.rstrip()
    if not last:
        last = f"pytest ended with {process.returncode} after {time.monotonic() - started:.0f} s"
    return process.returncode, last


def _coverage(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, check=False)


if __name__ == "__main__":
    sys.exit(main())
