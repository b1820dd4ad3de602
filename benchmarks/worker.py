"""
One variant in a process of its own: ``python -m benchmarks.worker MODULE``.

It reads commands, a line of JSON each, and answers each with a line of JSON. `MODULE` has
``prepare(variant) -> dict`` of the commands. This module imports the standard library alone: it
runs in the environments of other packages.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

__all__ = ["VARIANT", "count_calls", "first_and_replay", "race", "timed"]

#: The environment variable with the variant's name.
VARIANT = "BENCHMARK_VARIANT"


def timed(function: Callable[[Any], Any], arguments: Iterable[Any]) -> dict[str, Any]:
    """Return the microseconds of each call, and the CPU microseconds of all."""
    arguments = list(arguments)
    taken = []
    gc.collect()
    gc.disable()
    clock = time.perf_counter_ns
    cpu = time.process_time_ns()
    for argument in arguments:
        started = clock()
        function(argument)
        taken.append((clock() - started) / 1000)
    cpu = time.process_time_ns() - cpu
    gc.enable()
    return {"us": taken, "cpu_us": cpu / 1000 / len(taken)}


def first_and_replay(
    first: Callable[[str], Any], replay: Callable[[str], Any] | None = None
) -> dict[str, Callable[[int], dict[str, Any]]]:
    """Return the commands that call with new keys, and with those keys again; both are warm."""
    keys: list[str] = []

    def with_new_keys(n: int) -> dict[str, Any]:
        keys[:] = [str(uuid.uuid4()) for _ in range(n)]
        return timed(first, keys)

    def again(n: int) -> dict[str, Any]:
        return timed(replay or first, keys[:n])

    with_new_keys(20)
    again(20)
    return {"first": with_new_keys, "replay": again}


def count_calls(function: Callable[[], Any], below: str = "") -> dict[str, int]:
    """Return how many functions, of Python and of C, are called, and how many of files `below`."""
    counts = {"all": 0, "ours": 0}

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            counts["all"] += 1
            if event == "call" and below and frame.f_code.co_filename.startswith(below):
                counts["ours"] += 1

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counts


def race(function: Callable[[], Any], threads: int = 8) -> None:
    """Call `function` in many threads at the same moment; an exception is an answer, too."""
    barrier = threading.Barrier(threads)

    def run() -> None:
        barrier.wait()
        with suppress(Exception):
            function()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def main() -> None:
    """Carry out commands until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anybody else prints is no answer
    commands = importlib.import_module(sys.argv[1]).prepare(os.environ[VARIANT])
    for line in sys.stdin:
        words = json.loads(line)
        print(json.dumps(commands[words.pop("do")](**words)), file=answers, flush=True)


if __name__ == "__main__":
    main()
