"""Make the derived changes in copies of the project, and see that a test notices each."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from tests.proof.derived import PACKAGE, Change, every_change
from tests.proof.derived.suites import RESULTS, Suite, newer_tests, record, suites_of
from tests.proof.derived.verdicts import every_verdict, one_line
from tests.proof.mutations.copies import changed, copy_project, run_pytest

PATIENCE = 300
KEPT = RESULTS / "results.jsonl"


def main() -> int:
    """Judge the changes; 0 if each of them was noticed, but for those that are allowed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.derived", description=__doc__)
    parser.add_argument("words", nargs="*", help="only changes whose id has one of these words")
    parser.add_argument("--sample", type=int, help="so many of them, and whatever is known of them")
    parser.add_argument("--seed", default=date.today().isoformat(), help="of the sample: the day")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--allow", type=int, default=0, help="so many that nothing notices")
    arguments = parser.parse_args()
    ends = time.monotonic() + arguments.minutes * 60
    judged = {verdict.id for verdict in every_verdict()}
    chosen = [
        change
        for change in every_change()
        if change.id not in judged
        and (not arguments.words or any(word in change.id for word in arguments.words))
    ]
    if arguments.sample is not None:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen)))
        print(f"==> {len(chosen)} of the derived changes; SEED={arguments.seed} repeats them")
    else:
        noticed, survived = _known()
        chosen = [change for change in chosen if _key(change) not in noticed]
        if arguments.minutes < math.inf:
            random.Random(0).shuffle(chosen)  # so that those which fit are of all files
        chosen.sort(key=lambda change: _key(change) in survived)  # the others first
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="idempotency-derived-") as directory:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(arguments.jobs):
            copies.put(copy_project(Path(directory) / str(number)))
        run = _Run(copies, ends)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            suites = dict.fromkeys(s for change in chosen for s in suites_of(change.file))
            if not all(pool.map(run.record, suites)):
                return 1
            list(pool.map(run.judge, chosen))
    for what, count in sorted(run.counts.items()):
        print(f"{count:5} {what}")
    if run.survivors:
        print("Write a test that notices them, or why none can into survivors.txt:")
        print(*(_paragraph(change) for change in run.survivors), sep="\n\n")
    if arguments.allow:
        print(f"{len(run.survivors)} were not noticed, and {arguments.allow} may be.")
    return int(len(run.survivors) > arguments.allow)


class _Run:
    """The changes that are judged together, in as many copies as there are jobs."""

    def __init__(self, copies: SimpleQueue[Path], ends: float) -> None:
        self._copies = copies
        self._ends = ends
        self._lock = Lock()
        self._newer: dict[Suite, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self.survivors: list[Change] = []

    def record(self, suite: Suite) -> bool:
        """Record what the suite runs, and say so; False if none of its tests passes."""
        copy = self._copies.get()
        started = time.monotonic()
        try:
            done = record(copy, suite)
        finally:
            self._copies.put(copy)
        self._newer[suite] = newer_tests(suite) if done else []
        what = "recorded" if done else "no test passes"
        print(f"==> {suite.name}: {what}, {time.monotonic() - started:.0f} s", flush=True)
        return done

    def judge(self, change: Change) -> None:
        """Run the tests of the area until one notices the change, and keep what has happened."""
        copy = self._copies.get()
        started = time.monotonic()
        try:
            if started > self._ends:
                by = "not judged: the time is over"
            else:
                by = self._noticed_by(copy, change)
        finally:
            self._copies.put(copy)
        seconds = round(time.monotonic() - started, 1)
        area = change.file.rpartition("/")[0]
        with self._lock:
            self.counts[f"{area}: {by or 'survived'}"] += 1
            if by.startswith("not judged"):
                return
            if not by:
                self.survivors.append(change)
            mark = "ok  " if by else "LEFT"
            print(f"{mark} {seconds:5.1f} s  {change.id}: {by or 'not noticed'}", flush=True)
            with KEPT.open("a") as kept:
                result = {"key": _key(change), "by": by, "seconds": seconds}
                kept.write(json.dumps(result) + "\n")

    def _noticed_by(self, copy: Path, change: Change) -> str:
        """Return the suite that notices the change, and in which round; "" if none does."""
        path = copy / "django_idempotency" / change.file
        made = change.made(path.read_text())
        suites = suites_of(change.file)
        rounds = [suite.rounds(change, self._newer[suite]) for suite in suites]
        # The quick ones of each suite come before the long ones of any.
        for number, of_suites in enumerate(zip_longest(*rounds, fillvalue=[]), 1):
            for suite, tests in zip(suites, of_suites, strict=True):
                if not tests:
                    continue
                with changed(path, made):
                    code = _pytest(copy, suite, tests)
                # 1: a test failed; 2: they cannot be imported; others: so it may be for itself.
                if code in (1, 2) or (code and code != _pytest(copy, suite, tests)):
                    return f"noticed by {suite.name}, round {number}"
        return ""


def _pytest(copy: Path, suite: Suite, tests: list[str]) -> int:
    named = copy / "tests-to-run"  # more than a command line takes
    named.write_text("\n".join(tests) + "\n")
    return run_pytest(copy, [f"@{named}"], leg=suite.leg, patience=PATIENCE)


def _key(change: Change) -> str:
    """Return the id, and the source to which a result belongs."""
    source = hashlib.sha256((PACKAGE / change.file).read_bytes()).hexdigest()[:12]
    return f"{change.id} {source}"


def _known() -> tuple[set[str], set[str]]:
    """Return which changes were noticed, and which were not, by earlier runs."""
    results = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    noticed = {result["key"] for result in results if result["by"]}
    return noticed, {result["key"] for result in results} - noticed


def _paragraph(change: Change) -> str:
    return f"{change.id}\n- {one_line(change.old)}\n+ {one_line(change.new)}\n= "


if __name__ == "__main__":
    sys.exit(main())
