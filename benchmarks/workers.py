"""The processes of the variants, and rounds in which they take turns."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from benchmarks.environments import ROOT, python_of
from benchmarks.worker import VARIANT

__all__ = ["Worker", "rounds"]


class Worker:
    """A variant in a process of its own; a context manager."""

    def __init__(self, module: str, variant: str, environment: str, env: Mapping[str, str]) -> None:
        self.variant = variant
        self._process = subprocess.Popen(
            [python_of(environment), "-m", "benchmarks.worker", module],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), VARIANT: variant, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **words: Any) -> Any:
        """Send a command, and return its answer."""
        self.tell(do, **words)
        return self.answer()

    def tell(self, do: str, **words: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the command; RuntimeError if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.variant} ended with {self._process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


def rounds(
    workers: Sequence[Worker], count: int, commands: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, list[Any]]]:
    """
    Give each worker each command in every round, in another order each time.

    Returns the answers by variant and command, in the order of the rounds.
    """
    turns = random.Random(1)  # noqa: S311
    answers: dict[str, dict[str, list[Any]]] = {
        worker.variant: {name: [] for name in commands} for worker in workers
    }
    for _ in range(count):
        for name, words in commands.items():
            for worker in turns.sample(list(workers), len(workers)):
                answers[worker.variant][name].append(worker.ask(name, **words))
    return answers
