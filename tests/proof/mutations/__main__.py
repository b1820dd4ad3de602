"""Make each mutation in a copy of the project, and see that its test fails."""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.proof.mutations import Mutation, every_mutation
from tests.proof.mutations.copies import changed, copy_project, run_pytest
from tests.services.processes import ROOT

WORKERS = 2


def main() -> int:
    """Run the mutations; 0 if the test of each of them failed, and passes without it."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.mutations", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations that have one of these words")
    parser.add_argument("--sound", action="store_true", help="first see each test pass unchanged")
    parser.add_argument("--since", metavar="COMMIT", help="only of files that changed since then")
    parser.add_argument("--minutes", type=float, help="begin none after these; say how many")
    arguments = parser.parse_args()
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
    if arguments.minutes is not None:
        random.Random(0).shuffle(chosen)  # so that those which fit are of all areas
    ends = math.inf if arguments.minutes is None else time.monotonic() + arguments.minutes * 60
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="idempotency-mutations-") as directory:
        for number in range(WORKERS):
            copies.put(copy_project(Path(directory) / str(number)))

        def judge(mutation: Mutation) -> bool | None:
            copy = copies.get()
            started = time.monotonic()
            if started > ends:
                copies.put(copy)
                return None
            try:
                verdict = _verdict(copy, mutation, sound=arguments.sound)
            finally:
                copies.put(copy)
            mark = "ok  " if verdict == "found" else "FAIL"
            seconds = time.monotonic() - started
            print(
                f"{mark} {seconds:5.1f} s  {mutation.area}: {mutation.what}: {verdict}", flush=True
            )
            return verdict == "found"

        with ThreadPoolExecutor(WORKERS) as pool:
            judged = list(pool.map(judge, chosen))
    verdicts = [verdict for verdict in judged if verdict is not None]
    print(f"{sum(verdicts)} of {len(verdicts)} mutations are found by the test that is meant.")
    if left := len(judged) - len(verdicts):
        print(f"{left} more were left out after {arguments.minutes:g} minutes: make proof has all.")
    return 0 if verdicts and all(verdicts) else 1


def _changed_since(commit: str) -> set[str]:
    """Return the files below django_idempotency that differ from `commit`."""
    command = ["git", "diff", "--name-only", "--relative=django_idempotency", commit]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def _verdict(copy: Path, mutation: Mutation, *, sound: bool) -> str:
    path = copy / "django_idempotency" / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        return f"{mutation.file} has the text {text.count(mutation.old)} times: write it anew"
    if sound and _pytest(copy, mutation) != 0:
        return f"{mutation.test} does not pass without the change"
    with changed(path, text.replace(mutation.old, mutation.new)):
        code = _pytest(copy, mutation)
    # 1: a test failed; 2: the tests cannot even be imported. Else no test was run.
    return {0: "NOT FOUND", 1: "found", 2: "found"}.get(code, f"pytest ended with {code}")


def _pytest(copy: Path, mutation: Mutation) -> int:
    return run_pytest(copy, mutation.test.split(), leg=mutation.leg)


if __name__ == "__main__":
    sys.exit(main())
