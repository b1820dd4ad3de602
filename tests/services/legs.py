"""`make unit`, `make test`, `make proof`: pytest on each folder and database, several at a time."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services import LEG_VARIABLE, LEGS
from tests.services.postgres import URL_VARIABLE
from tests.services.processes import ROOT

LOGS = ROOT / ".legs"
#: One more than two cores: tests that wait for processes leave the cores to others.
AT_ONCE = 3
#: What takes longest begins first, so that no core is idle at the end.
LONGEST = (
    *(
        "acceptance-processes",
        "acceptance-tutorial",
        "integration-dynamodb",
        "unit",
        "browser",
        "sqlite",
        "mariadb",
    ),
    *("unit-http", "postgres16", "acceptance-example", "integration-database"),
)
#: The half of the unit tests that sends requests.
UNIT_HTTP = ("contract", "http", "views")
#: What another database can change: each of the databases after the first runs these folders.
DATABASE_FOLDERS = (
    *("tests/integration/database", "tests/integration/http"),
    "tests/acceptance/processes",
)

#: What of the proof each database runs.
DYING = "tests/proof/test_dying_steps.py"


@dataclass(frozen=True)
class Run:
    name: str
    leg: str
    #: Folders, and other words for pytest.
    words: tuple[str, ...]


#: Where Django has no newer driver.
PSYCOPG2 = Run(
    "psycopg2", "postgres18", ("-p", "tests.services.psycopg2", "tests/integration/database")
)


def runs_of(target: str) -> list[Run]:
    match target:
        case "unit":
            # One for each core: two xdist workers would each collect, and import, all of it.
            http = tuple(f"tests/unit/{name}" for name in UNIT_HTTP)
            others = (f"tests/unit/{name}" for name in _folders("unit"))
            rest = tuple(folder for folder in others if folder not in http)
            return [Run("unit", "sqlite", rest), Run("unit-http", "sqlite", http)]
        case "integration" | "acceptance":
            own = [
                Run(f"{target}-{name}", "postgres18", (f"tests/{target}/{name}",))
                for name in _folders(target)
                if name != "browser"
            ]
            return [*own, PSYCOPG2] if target == "integration" else own
        case "database":
            folder = "tests/integration/database"
            return [Run(f"{leg}-database", leg, (folder,)) for leg in LEGS if leg != "browser"]
        case "browser":
            return [Run("browser", "browser", ("tests/acceptance/browser",))]
        case "proof":
            return [
                Run("proof", "postgres18", ("tests/proof",)),
                Run("proof-postgres16", "postgres16", DATABASE_FOLDERS[-1:]),
                *(Run(f"proof-{leg}", leg, (DYING,)) for leg in ("sqlite", "mariadb")),
            ]
        case "test":
            parts = ("unit", "acceptance", "integration", *LEGS[1:])
            runs = {run.name: run for part in parts for run in runs_of(part)}
            return [runs.pop(name) for name in LONGEST] + list(runs.values())
        case "postgres18":
            return [*runs_of("acceptance"), *runs_of("integration")]
        case "postgres16":  # make proof has its processes; HTTP does not depend on the version
            return [Run(target, target, DATABASE_FOLDERS[:1])]
        case _:
            return [Run(target, target, DATABASE_FOLDERS)]


TARGETS = ("unit", "integration", "database", "acceptance", "test", "proof", *LEGS)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.services.legs",
        description=__doc__,
        epilog="What follows -- goes to pytest: python -m tests.services.legs sqlite -- -k R42",
    )
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; test")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--order", metavar="SEED", help="in a random order: random, or its number")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments, rest = parser.parse_args(words[:end]), words[end + 1 :]
    targets = arguments.targets or ["test"]
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    runs = list({run.name: run for target in targets for run in runs_of(target)}.values())
    if URL_VARIABLE in os.environ:  # its server takes the place of both PostgreSQL legs
        runs = [run for run in runs if run.leg != "postgres16"]

    if arguments.coverage:
        _coverage("erase")
    runner = ["-m", "coverage", "run", "-m", "pytest"] if arguments.coverage else ["-m", "pytest"]
    options = ["--durations=15", *_order(arguments.order), *rest]
    if len(runs) == 1:
        options += ["-n", "2", "--dist", "loadgroup"]
    LOGS.mkdir(exist_ok=True)
    started = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        codes = pool.map(lambda run: _pytest(run, [*runner, *run.words, *options]), runs)
        code_of = dict(zip(runs, codes, strict=True))
    if arguments.coverage:
        print("\n==> coverage of all legs", flush=True)
        _coverage("combine", "--quiet")
        _coverage("report")
    # What is asked for after -- need not be in every leg.
    passed = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED if rest else 0}
    failed = [run.name for run, code in code_of.items() if code not in passed]
    for name in failed:  # again at the end, where a reader of a long log looks first
        text = _log(name).read_text(errors="replace")
        print(*re.findall(r"(?m)^(?:FAILED|ERROR) .*", text), sep="\n")
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    print(f"\n==> {verdict}, in {time.monotonic() - started:.0f} s", flush=True)
    return int(bool(failed))


def _order(seed: str | None) -> list[str]:
    if seed is None:
        return []
    chosen = [f"--randomly-seed={seed}"] if seed.isdigit() else []
    return ["-p", "randomly", *chosen]


def _log(name: str) -> Path:
    return LOGS / f"{name}.log"


def _folders(part: str) -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "tests" / part).glob("*/__init__.py"))


_printing = threading.Lock()


def _pytest(run: Run, words: list[str]) -> int:
    """Run pytest into a log, show what of it a reader wants, and return its exit code."""
    log = _log(run.name)
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, LEG_VARIABLE: run.leg},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, used = os.wait4(process.pid, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    seconds, cpu = time.monotonic() - started, used.ru_utime + used.ru_stime
    text = log.read_text(errors="replace")
    if code == pytest.ExitCode.OK:  # only what was left out
        shown = [line for line in text.splitlines() if line.startswith(("SKIPPED", "XFAIL"))]
    else:
        shown = [] if code == pytest.ExitCode.NO_TESTS_COLLECTED else [text]
    closing = re.findall(r"(?m)^=+ (.* in [\d.]+s.*?) =+$", text) or [f"pytest ended with {code}"]
    shown.append(f"{run.name:24} {seconds:5.0f} s, CPU {cpu:4.0f} s: {closing[-1]}")
    with _printing:
        print("\n".join(shown), flush=True)
    return code


def _coverage(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, check=False)


if __name__ == "__main__":
    sys.exit(main())
