"""The sender of a variant's tasks, which waits until they are done."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks.prefork_app import app, counted, task
from benchmarks.worker import race

#: Nothing more comes when nothing has come for so long.
QUIET, PATIENCE = 1.0, 60.0


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Return the commands."""
    sent: list[str] = []

    def first(n: int) -> dict[str, float]:
        """Send tasks of new keys; how many per second were sent and done, and the sender's CPU."""
        sent[:] = [str(uuid.uuid4()) for _ in range(n)]
        return send()

    def again(n: int) -> dict[str, float]:
        """Send the same keys again."""
        return send()

    def send() -> dict[str, float]:
        goal = delivered() + len(sent)
        began, cpu = time.perf_counter(), time.process_time()
        for order in sent:
            task.apply_async(args=[order])
        cpu = time.process_time() - cpu
        while delivered() < goal:
            if time.perf_counter() - began > PATIENCE:
                raise TimeoutError(f"{goal - delivered()} of {len(sent)} are not done")
            time.sleep(0.002)
        seconds = time.perf_counter() - began
        return {"per_second": len(sent) / seconds, "cpu_us": cpu / len(sent) * 1e6}

    def effects(times: int) -> dict[str, list[int]]:
        """Send one key 8 times at once, and once more when all is done; the effects of each."""
        at_once, later = [], []
        for order in [str(uuid.uuid4()) for _ in range(times)]:
            race(lambda order=order: task.apply_async(args=[order]))  # type: ignore[misc]
            settle()
            at_once.append(of(order))
            task.apply_async(args=[order])
            settle()
            later.append(of(order))
        return {"at_once": at_once, "later": later}

    def of(order: str) -> int:
        return int(counted.hget("effects", order) or 0)

    app.connection_for_write().ensure_connection()
    return {"first": first, "replay": again, "effects": effects}


def delivered() -> int:
    return int(counted.get("delivered") or 0)


def settle() -> None:
    """Wait until nothing more is done."""
    seen, since = delivered(), time.monotonic()
    while time.monotonic() - since < QUIET:
        time.sleep(0.01)
        if (now := delivered()) != seen:
            seen, since = now, time.monotonic()
