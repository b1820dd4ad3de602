"""Make each mutation in a copy of the project, and see that its test fails."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path
from queue import SimpleQueue

from tests.proof.mutations import Mutation, every_mutation
from tests.proof.mutations.copies import copy_project
from tests.proof.mutations.sessions import Session
from tests.services.processes import ROOT

WORKERS = 2


def main() -> int:
    """Run the mutations; 0 if the test of each of them failed, and passes without it."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.mutations", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations that have one of these words")
    parser.add_argument("--since", metavar="COMMIT", help="only of files that changed since then")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after these")
    arguments = parser.parse_args()
    ends = time.monotonic() + arguments.minutes * 60
    chosen = [
        mutation
        for mutation in every_mutation()
        if not arguments.words
        or any(
            word in f"{mutation.area} {mutation.file} {mutation.what}" for word in arguments.words
        )
    ]
    if arguments.since is not None:
        files = _changed_since(arguments.since)
        chosen = [mutation for mutation in chosen if mutation.file in files]
        if not chosen:
            print(f"No file that has mutations was changed since {arguments.since}.")
            return 0
    together: defaultdict[tuple[str, str], list[Mutation]] = defaultdict(list)
    for mutation in chosen:
        together[mutation.leg, _folder(mutation)].append(mutation)
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="idempotency-mutations-") as directory:
        for number in range(WORKERS):
            copies.put(copy_project(Path(directory) / str(number)))

        def judge(mutations: list[Mutation]) -> list[bool]:
            copy = copies.get()
            with closing(Session(copy, mutations[0].leg, [_folder(mutations[0])])) as session:
                judged = [_judge(session, m) for m in mutations if time.monotonic() < ends]
            copies.put(copy)
            return judged

        with ThreadPoolExecutor(WORKERS) as pool:
            verdicts = list(chain(*pool.map(judge, sorted(together.values(), key=len)[::-1])))
    print(f"{sum(verdicts)} of {len(verdicts)} mutations are found by the test that is meant.")
    if left := len(chosen) - len(verdicts):
        print(f"{left} more were left out after {arguments.minutes:g} minutes: make proof has all.")
    return 0 if verdicts and all(verdicts) else 1


def _folder(mutation: Mutation) -> str:
    """Return the folder whose tests are collected for the mutation."""
    return "/".join(mutation.test.split()[0].split("/")[:3])


def _changed_since(commit: str) -> set[str]:
    """Return the files below django_idempotency that differ from `commit`."""
    command = ["git", "diff", "--name-only", "--relative=django_idempotency", commit]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def _judge(session: Session, mutation: Mutation) -> bool:
    """Say what the test does with the mutation; True if it finds it."""
    started = time.monotonic()
    verdict = _verdict(session, mutation)
    mark = "ok  " if verdict == "found" else "FAIL"
    seconds = time.monotonic() - started
    print(f"{mark} {seconds:5.1f} s  {mutation.area}: {mutation.what}: {verdict}", flush=True)
    return verdict == "found"


def _verdict(session: Session, mutation: Mutation) -> str:
    text = session.text_of(mutation.file)
    if text.count(mutation.old) != 1:
        return f"{mutation.file} has the text {text.count(mutation.old)} times: write it anew"
    text = text.replace(mutation.old, mutation.new)
    test, *options = mutation.test.split()
    judged = None
    # A folder of another kind, and other options, are not what a session is made for.
    if mutation.test.startswith(("tests/unit", "tests/integration")) and options[:1] in (
        [],
        ["-k"],
    ):
        judged = session.judge(mutation.file, text, [test, *options])
    if judged is None or not judged.noticed:
        judged = session.judge_alone(mutation.file, text, [test], options=options)
    return "found" if judged.noticed else judged.by or "NOT FOUND"


if __name__ == "__main__":
    sys.exit(main())
