"""Threads that start together and end for sure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from django.db import connections

Result = TypeVar("Result")


def run_in_threads(
    number: int,
    function: Callable[[int], Result],
    *,
    seconds: float = 60,
    using: Sequence[str] = (),
) -> list[Result]:
    """
    Call `function(index)` in `number` threads at the same moment; the results in index order.

    The first error is raised again here. Each thread opens the connections named in `using` before
    the common start, and closes all of its own at the end.
    """
    barrier = threading.Barrier(number)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    broken: list[BaseException] = []  # the echo of another thread's error, or a thread too late

    def work(index: int) -> None:
        try:
            for alias in using:
                connections[alias].ensure_connection()
            barrier.wait(seconds)
            results[index] = function(index)
        except threading.BrokenBarrierError as error:
            broken.append(error)
        except BaseException as error:
            errors.append(error)
            barrier.abort()
        finally:
            connections.close_all()

    threads = [
        threading.Thread(target=work, args=(index,), name=f"test-{index}", daemon=True)
        for index in range(number)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors or broken:
        raise (errors or broken)[0]
    if stuck := [thread.name for thread in threads if thread.is_alive()]:
        raise TimeoutError(f"after {seconds:g} s still running: {', '.join(stuck)}")
    return [results[index] for index in range(number)]
