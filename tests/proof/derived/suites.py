"""Which tests run the changed lines: those of the area, of which a recording knows the lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from threading import Lock

from coverage import CoverageData

from tests.proof.derived import PACKAGE, Change
from tests.proof.derived.recording import RECORD_VARIABLE
from tests.proof.mutations.copies import run_pytest
from tests.services.processes import ROOT

#: Ignored by git.
RESULTS = ROOT / ".mutants"
#: How many seconds the tests of each round take. Of a line that all tests run that is enough.
_SECONDS = (4.0, 25.0, 60.0)
ROUNDS = len(_SECONDS)
_SETTINGS = (
    "[run]\nsource = django_idempotency\nrelative_files = true\ncore = ctrace\ndata_file = {}\n"
)


@dataclass(frozen=True)
class Suite:
    """Tests that run together, on one leg."""

    name: str
    leg: str
    words: tuple[str, ...]
    #: The tests that run first where no recording says which run a change.
    first: str = "test_contract.py"

    def rounds(self, change: Change) -> list[list[str]]:
        """Return the tests that run the change: the fastest of each function, then the others."""
        seconds = _seconds(self.name)
        if change.lines is None:
            by_time = sorted(seconds, key=seconds.__getitem__)
            firsts = [test for test in by_time if self.first in test]
            *parts, _ = _parted(firsts, seconds)
            return [*parts, [test for test in by_time if test not in set(chain(*parts))]]
        ran = _tests_of(self.name, f"django_idempotency/{change.file}")
        tests = {test for line in change.lines for test in ran.get(line, ()) if test in seconds}
        by_time = sorted(tests, key=lambda test: (seconds[test], test))
        fastest = {test.partition("[")[0]: test for test in reversed(by_time)}
        firsts = sorted(fastest.values(), key=by_time.index)
        others = (test for test in by_time if test not in fastest.values())
        return _parted([*firsts, *others], seconds)

    def seconds(self, tests: Iterable[str]) -> float:
        """Return how long the tests take; 10 s for those of which that is not known."""
        return sum(_seconds(self.name).get(test, 10) for test in tests)


def _parted(tests: list[str], seconds: dict[str, float]) -> list[list[str]]:
    parts = []
    for budget in _SECONDS:
        ends = [*accumulate(seconds[test] for test in tests)]
        count = 1 + sum(end < budget for end in ends)
        parts.append(tests[:count])
        tests = tests[count:]
    return parts


_UNIT = (
    "adrf",
    "celery",
    "client",
    "contract",
    "core",
    "events",
    "forms",
    "http",
    "ninja",
    "views",
)
UNIT = Suite("unit", "sqlite", tuple(f"tests/unit/{folder}" for folder in _UNIT))
DATABASE = Suite(
    "database",
    "postgres18",
    tuple(f"tests/integration/{folder}" for folder in ("core", "database", "http", "views")),
)
SQLITE = Suite("sqlite", "sqlite", ("tests/integration/database",))
MARIADB = Suite("mariadb", "mariadb", ("tests/integration/database",))
REDIS = Suite("redis", "postgres18", ("tests/integration/redis",))
DYNAMODB = Suite("dynamodb", "postgres18", ("tests/integration/dynamodb",))

#: What judges the changes of the files that begin so, fastest first.
AREAS: dict[str, tuple[Suite, ...]] = {
    "engine/": (UNIT, DATABASE, DYNAMODB),
    "transactions/": (UNIT, DATABASE),
    "http/": (UNIT, DATABASE),
    "contrib/celery/": (UNIT,),
    "stores/database/statements.py": (DATABASE, UNIT, MARIADB),
    "stores/database/postgresql.py": (DATABASE,),
    "stores/database/sqlite.py": (SQLITE, UNIT),
    "stores/database/mariadb.py": (MARIADB,),
    "stores/redis/": (REDIS,),
    "stores/dynamodb/": (DYNAMODB,),
}


def suites_of(file: str) -> tuple[Suite, ...]:
    """Return the suites of the file's area."""
    [suites] = [suites for begin, suites in AREAS.items() if file.startswith(begin)]
    return suites


def record(copy: Path, suite: Suite) -> bool:
    """Record which tests of the suite run which lines, unless that is known; False if none does."""
    source = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(PACKAGE.rglob("*.py"))))
    known = RESULTS / f"{suite.name}.source"
    if known.exists() and known.read_text() == source.hexdigest():
        return True
    data, seconds = _paths(suite.name)
    data.unlink(missing_ok=True)
    seconds.unlink(missing_ok=True)
    settings = copy / f"{suite.name}.coveragerc"
    settings.write_text(_SETTINGS.format(data))
    runner = ("coverage", "run", f"--rcfile={settings}", "-m", "pytest")
    words = ("-p", "tests.proof.derived.recording", *suite.words)
    env = {RECORD_VARIABLE: str(seconds)}
    run_pytest(copy, words, leg=suite.leg, runner=runner, patience=3600, env=env)
    if not seconds.exists() or not json.loads(seconds.read_text()):
        return False
    known.write_text(source.hexdigest())
    return True


def newer_tests(suite: Suite) -> list[str]:
    """Return the files of tests that were written after the recording."""
    recorded = _paths(suite.name)[1].stat().st_mtime
    files = (path for words in suite.words for path in (ROOT / words).rglob("test_*.py"))
    return [str(p.relative_to(ROOT)) for p in files if p.stat().st_mtime > recorded]


def _paths(name: str) -> tuple[Path, Path]:
    return RESULTS / f"{name}.coverage", RESULTS / f"{name}.json"


_reading = Lock()


@cache
def _seconds(name: str) -> dict[str, float]:
    seconds: dict[str, float] = json.loads(_paths(name)[1].read_text())
    return seconds


@cache
def _tests_of_file(name: str, file: str) -> dict[int, list[str]]:
    data = CoverageData(str(_paths(name)[0]))
    data.read()
    return data.contexts_by_lineno(file)


def _tests_of(name: str, file: str) -> dict[int, list[str]]:
    with _reading:
        return _tests_of_file(name, file)
