"""Make each edge in a copy of the project, and see whether the generated pairs find it."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.proof.conftest import SEED
from tests.proof.mutations import Mutation, every_mutation
from tests.proof.mutations.__main__ import WORKERS
from tests.proof.mutations.copies import changed, copy_project
from tests.proof.pairs.features import cases

PAIRS = "tests/proof/pairs"
#: What has the cases of tasks: no request comes into the code of Celery's.
TASKS = f"{PAIRS}/test_task_pairs.py"
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
#: Prints the modules that the tests import.
LOADED = "import sys, pytest; pytest.main(sys.argv[1:]); print(*sys.modules)"
PATIENCE = 1800


def main() -> int:
    """Print for each edge whether a generated case fails, after how many seconds, and which."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.pairs.found", description=__doc__)
    parser.add_argument("words", nargs="*", help="only edges that have one of these words")
    words = parser.parse_args().words
    edges = [
        mutation
        for mutation in every_mutation()
        if mutation.area == "edges"
        and (not words or any(word in f"{mutation.file} {mutation.what}" for word in words))
    ]
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="idempotency-edges-") as directory:
        kept = Path(directory) / "cases.json"
        kept.write_text(json.dumps([vars(case) for case in cases(SEED)]))
        os.environ["PAIRS_CASES"] = str(kept)
        for number in range(WORKERS):
            copies.put(copy := copy_project(Path(directory) / str(number)))
        command = [sys.executable, "-c", LOADED, "--collect-only", "-q", PAIRS]
        told = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=True).stdout
        loaded = set(told.split())

        def is_found(edge: Mutation) -> bool:
            name = f"django_idempotency/{edge.file}".removesuffix(".py").replace("/", ".")
            if name.removesuffix(".__init__") not in loaded:
                print(f"   0.0 s  {edge.what}: not found: its module is not loaded", flush=True)
                return False
            copy, started = copies.get(), time.monotonic()
            try:
                case = _failing_case(copy, edge)
            finally:
                copies.put(copy)
            verdict = "not found" if case is None else f"found by {case}"
            print(f"{time.monotonic() - started:6.1f} s  {edge.what}: {verdict}", flush=True)
            return case is not None

        with ThreadPoolExecutor(WORKERS) as pool:
            found = list(pool.map(is_found, edges))
    print(f"The generated pairs find {sum(found)} of {len(found)} edges.")
    return 0


def _failing_case(copy: Path, edge: Mutation) -> str | None:
    """Return the first test that fails with this edge; None if all pass."""
    path = copy / "django_idempotency" / edge.file
    tests = TASKS if edge.file.startswith("contrib/celery/") else PAIRS
    with changed(path, path.read_text().replace(edge.old, edge.new)):
        done = _tested(copy, tests)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - |$)", done.stdout, re.MULTILINE)
    if failed is None:
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}")
    if _tested(copy, failed[1]).returncode != 0:
        raise RuntimeError(f"{failed[1]} fails without the edge, too: {done.stdout}")
    return failed[1].partition("::")[2]


def _tested(copy: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests in the copy as it is."""
    return subprocess.run(
        [sys.executable, *PYTEST, tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
