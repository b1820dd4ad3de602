"""Make the derived changes in copies of the project, and see that a test notices each."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from tests.proof.derived import Change, every_change
from tests.proof.derived.noticed import keep, known, table, tidy
from tests.proof.derived.suites import RESULTS, ROUNDS, Suite, newer_tests, record, suites_of
from tests.proof.derived.verdicts import every_verdict, one_line
from tests.proof.mutations.copies import copy_project
from tests.proof.mutations.sessions import Judgement, Session

LEFT = RESULTS / "left.jsonl"


def main() -> int:
    """Judge the changes; 0 if each of them was noticed, but for those that are allowed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.derived", description=__doc__)
    parser.add_argument("words", nargs="*", help="only changes whose id has one of these words")
    parser.add_argument("--sample", type=int, help="so many of them, and whatever is known of them")
    parser.add_argument("--seed", default=date.today().isoformat(), help="of the sample: the day")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after these")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="1: the fastest tests alone")
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
    rounds_before: dict[str, int] = {}
    if arguments.sample is not None:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen)))
        print(f"==> {len(chosen)} of the derived changes; SEED={arguments.seed} repeats them")
    else:
        noticed, rounds_before = known(), _left()
        chosen = [change for change in chosen if noticed.get(change.id) != change.digest]
        if arguments.minutes < math.inf:
            random.Random(0).shuffle(chosen)  # so that those which fit are of all files
    RESULTS.mkdir(exist_ok=True)
    run = _Run(ends, rounds_before)
    with (
        tempfile.TemporaryDirectory(prefix="idempotency-derived-") as directory,
        ExitStack() as stack,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        for number in range(arguments.jobs):
            place = _Place(copy_project(Path(directory) / str(number)))
            stack.callback(place.close)
            run.places.put(place)
        suites = dict.fromkeys(s for change in chosen for s in suites_of(change.file))
        if not all(pool.map(run.record, suites)):
            return 1
        # The quick tests judge all changes before the long ones judge any.
        for number in range(arguments.rounds + 1):
            left = list(pool.map(run.judge, chosen, [number] * len(chosen)))
            chosen = [change for change, is_left in zip(chosen, left, strict=True) if is_left]
    tidy()
    print(table())
    for what, count in sorted(run.counts.items()):
        print(f"{count:5} {what}")
    print(f"{len(chosen):5} not noticed")
    if run.not_judged:
        print(f"{len(run.not_judged):5} not judged, whose tests did not even pass without a change")
    if chosen:
        print("Write a test that notices them, or why none can into tests/proof/derived/survivors:")
        print(*map(_paragraph, chosen), sep="\n\n")
    if arguments.allow:
        print(f"{len(chosen)} were not noticed, and {arguments.allow} may be.")
    return int(len(chosen) > arguments.allow or bool(run.not_judged))


class _Place:
    """A copy of the project, and what runs in it."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        self._sessions: dict[Suite, Session] = {}

    def session(self, suite: Suite) -> Session:
        if suite not in self._sessions:
            self._sessions[suite] = Session(self.copy, suite.leg, suite.words)
        return self._sessions[suite]

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()


class _Run:
    """The changes that are judged together, in as many places as there are jobs."""

    def __init__(self, ends: float, rounds_before: dict[str, int]) -> None:
        self.places: SimpleQueue[_Place] = SimpleQueue()
        self.counts: Counter[str] = Counter()
        self.not_judged: list[Change] = []
        self._ends = ends
        self._rounds_before = rounds_before
        self._lock = Lock()
        self._newer: dict[Suite, list[str]] = {}
        self._noticed_beside: defaultdict[str, list[str]] = defaultdict(list)

    def record(self, suite: Suite) -> bool:
        """Record what the suite runs, and say so; False if none of its tests passes."""
        place = self.places.get()
        started = time.monotonic()
        try:
            done = record(place.copy, suite)
        finally:
            self.places.put(place)
        self._newer[suite] = newer_tests(suite) if done else []
        what = "recorded" if done else "no test passes"
        print(f"==> {suite.name}: {what}, {time.monotonic() - started:.0f} s", flush=True)
        return done

    def judge(self, change: Change, number: int) -> bool:
        """
        Let the tests of a round, of each suite, judge the change; True if none notices it.

        Round 0 has the tests that were written after the recording.
        """
        before = self._rounds_before.get(_key(change), 0)
        is_known = number <= before if number else not any(self._newer.values())
        if is_known or time.monotonic() > self._ends:
            return True
        place = self.places.get()
        started = time.monotonic()
        try:
            for suite in suites_of(change.file):
                judged = self._judged(place.session(suite), suite, change, number)
                if judged.by:
                    break
        finally:
            self.places.put(place)
        if judged.by and not judged.noticed:
            with self._lock:
                self.not_judged.append(change)
                print(f"FAIL {change.id}: {judged.by}", flush=True)
            return False
        by = suite.name if judged.noticed else ""
        self._keep(change, number, by, judged.by, round(time.monotonic() - started, 1))
        return not by

    def _judged(self, session: Session, suite: Suite, change: Change, number: int) -> Judgement:
        rounds = suite.rounds(change)
        tests = rounds[number - 1] if number else self._newer[suite]
        # What has noticed a change beside this one is likely to notice this one.
        beside = self._noticed_beside[f"{suite.name} {change.file}:{change.where}"]
        nearby = self._noticed_beside[f"{suite.name} {change.file}"]
        first = [test for test in (*beside, *nearby) if test in set(tests)]
        text = change.made(session.text_of(change.file))
        patience = 60 + 15 * suite.seconds(tests)
        judged = Judgement(False, "")
        if tests:
            judged = session.judge(change.file, text, [*dict.fromkeys((*first, *tests))], patience)
        if not judged.by and number == ROUNDS and rounds[0]:
            judged = session.judge_alone(change.file, text, rounds[0], patience)
        if judged.noticed:
            for known in (beside, nearby):
                known[:] = [judged.by, *(test for test in known[:4] if test != judged.by)]
        return judged

    def _keep(self, change: Change, number: int, by: str, test: str, seconds: float) -> None:
        with self._lock:
            if by:
                area = change.file.rpartition("/")[0]
                self.counts[f"{area}: noticed by {by}, round {number}"] += 1
                keep(change, by)
            else:
                with LEFT.open("a") as left:
                    left.write(json.dumps({"key": _key(change), "round": number}) + "\n")
            mark = f"ok   {by}: {test}" if by else "LEFT"
            print(f"{number} {seconds:5.1f} s  {change.id}: {mark}", flush=True)


def _key(change: Change) -> str:
    return f"{change.id} {change.digest}"


def _left() -> dict[str, int]:
    """Return how many rounds have not noticed a change, of those that were judged here."""
    rounds: dict[str, int] = {}
    for result in map(json.loads, LEFT.read_text().splitlines() if LEFT.exists() else ()):
        rounds[result["key"]] = max(result["round"], rounds.get(result["key"], 0))
    return rounds


def _paragraph(change: Change) -> str:
    return f"{change.id}\n- {one_line(change.old)}\n+ {one_line(change.new)}\n= "


if __name__ == "__main__":
    sys.exit(main())
