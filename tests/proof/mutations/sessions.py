"""
A pytest that has collected its tests, and runs some of them for each change.

What a run of pytest takes is mostly its start: servers, imports, the collection, databases. Here
one process has all that, and forks for each change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.proof.mutations.copies import PATIENCE, changed, environment, run_pytest
from tests.proof.mutations.forking import ASKED, BROKEN, NOT_EXCHANGED, TIME_OUT, TOLD

__all__ = ["Judgement", "Session"]


class Judgement(NamedTuple):
    noticed: bool
    #: By which test, or how the run ended.
    by: str


class Session:
    """The tests of some folders, on one leg, in a copy of the project; to be closed."""

    def __init__(self, copy: Path, leg: str, words: Sequence[str]) -> None:
        self._copy = copy
        self._leg = leg
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def judge(
        self, file: str, text: str, tests: Sequence[str], patience: float = PATIENCE
    ) -> Judgement:
        """
        Run tests with the file's text changed until one fails.

        It counts if what was run passes without the change, in the same process, afterwards. What
        is not noticed may be so alone: something here may have been made before the change.
        """
        for _ in range(2):
            code, ran = self._ask(file, text, tests, patience)
            if code in (NOT_EXCHANGED, BROKEN):
                break
            if code == 0:
                return Judgement(False, "")
            if code not in (1, TIME_OUT):
                return Judgement(False, f"pytest ended with {code}")
            if self._ask(file, None, ran, patience)[0] == 0:
                return Judgement(True, ran[-1] if code == 1 else f"{ran[-1]}, which hangs")
            self.close()  # what a change has left behind may be the cause: begin again
        else:
            return Judgement(False, f"{ran[-1]} fails without the change")
        return self.judge_alone(file, text, tests, patience)

    def judge_alone(
        self,
        file: str,
        text: str,
        tests: Sequence[str],
        patience: float = PATIENCE,
        options: Sequence[str] = (),
    ) -> Judgement:
        """Run the tests in a process of their own, which may have options of its own."""
        named = self._copy / "tests-to-run"  # more than a command line takes
        named.write_text("\n".join(tests) + "\n")
        words = [*options, f"@{named}"]
        with changed(self._path(file), text):
            code = run_pytest(self._copy, words, leg=self._leg, patience=patience)
        if code == 0:
            return Judgement(False, "")
        # 1: a test failed; 2: the tests cannot even be imported.
        if code not in (1, 2):
            return Judgement(False, f"pytest ended with {code}")
        if run_pytest(self._copy, words, leg=self._leg, patience=patience):
            return Judgement(False, "the tests fail without the change")
        return Judgement(True, "a process of its own")

    def text_of(self, file: str) -> str:
        """Return what the file says without a change."""
        return self._path(file).read_text()

    def _path(self, file: str) -> Path:
        return self._copy / "django_idempotency" / file

    def _ask(
        self, file: str, text: str | None, tests: Sequence[str], patience: float
    ) -> tuple[int, list[str]]:
        if self._process is None:
            self._begin()
        question = {
            "file": str(self._path(file)),
            "text": text,
            "tests": list(tests),
            "patience": patience,
        }
        print(json.dumps(question), file=self._asked, flush=True)
        answer = json.loads(self._told.readline())
        return answer["code"], answer["tests"]

    def _begin(self) -> None:
        asked, self_asked = os.pipe()
        self_told, told = os.pipe()
        place = Path(tempfile.mkdtemp(dir=self._copy))
        options = ["-q", "-p", "no:cacheprovider", "-p", "tests.proof.mutations.forking"]
        with (place / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, f"--basetemp={place}/t", *self._words],
                cwd=self._copy,
                env={**environment(self._copy, self._leg), ASKED: str(asked), TOLD: str(told)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(asked, told),
            )
        os.close(asked)
        os.close(told)
        self._asked, self._told = os.fdopen(self_asked, "w"), os.fdopen(self_told)
        if not self._told.readline():
            raise RuntimeError((place / "output").read_text())

    def close(self) -> None:
        """End the process, and its servers with it."""
        if self._process is not None:
            self._asked.close()
            self._process.wait()
            self._told.close()
            self._process = None
