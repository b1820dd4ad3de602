"""What one attempt makes of the record of another, which another adapter or mode has written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from django_idempotency.engine import Engine
from django_idempotency.engine.attempt import Operation
from django_idempotency.exceptions import FingerprintMismatch, InProgress
from django_idempotency.leases import Lease
from tests.claims import OTHER_FINGERPRINT, operation, won

__all__ = ["MEANS", "READERS", "what_it_means"]

Reader = Callable[[Engine, Operation, Any], str]

#: What a record means to the next attempt, by what it is: with the same fingerprint, and another.
MEANS = {
    "completed": ("replayed first", "mismatch"),
    "failed": ("ran", "mismatch"),
    "released": ("ran", "ran"),
    "live": ("in progress", "mismatch"),
    "lapsed": ("ran", "mismatch"),
}


def _run(engine: Engine, operation: Operation, work: Any) -> Any:
    return engine.run(operation, work)


def _attempt(engine: Engine, operation: Operation, work: Any) -> Any:
    with engine.attempt(operation) as attempt:
        if not attempt.replayed:
            attempt.complete(work(attempt.lease))
    return attempt.outcome


def _arun(engine: Engine, operation: Operation, work: Any) -> Any:
    async def main() -> Any:
        try:
            return await engine.arun(operation, sync_to_async(work))
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(main())


def _aattempt(engine: Engine, operation: Operation, work: Any) -> Any:
    async def main() -> Any:
        try:
            async with engine.aattempt(operation) as attempt:
                if not attempt.replayed:
                    attempt.complete(work(attempt.lease))
            return attempt.outcome
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(main())


#: How an attempt is made: a call, a block, and both of a coroutine.
READERS = {"run": _run, "attempt": _attempt, "arun": _arun, "aattempt": _aattempt}


def what_it_means(
    engine: Engine,
    reader: str,
    *,
    states: Iterable[str] = tuple(MEANS),
    wrote: str = "separate",
    reads: str = "separate",
) -> dict[str, tuple[str, ...]]:
    """Return what records in `states` mean to `reader`, in the form of `MEANS`."""
    return {
        state: tuple(
            _meet(engine, reader, wrote=wrote, reads=reads, state=state, same=same)
            for same in (True, False)
        )
        for state in states
    }


def _meet(engine: Engine, reader: str, *, wrote: str, reads: str, state: str, same: bool) -> str:
    """
    Leave a record in `state` in the mode `wrote`, and return what it means to `reader`.

    Which asks in the mode `reads`. Where it ran, the record must have its result, for `wrote` too.
    """
    key = f"{reader} {wrote} {reads} {state} {same}"
    _leave(engine, operation(key, transaction=wrote), state)
    fingerprints = {} if same else {"fingerprint": OTHER_FINGERPRINT}
    asked = operation(key, transaction=reads, **fingerprints)
    try:
        outcome = READERS[reader](engine, asked, lambda lease: "second")
    except InProgress:
        return "in progress"
    except FingerprintMismatch:
        return "mismatch"
    if outcome.replayed:
        return f"replayed {outcome.result}"
    again = engine.run(operation(key, transaction=wrote, **fingerprints), _never)
    assert (outcome.result, again.result, again.replayed) == ("second", "second", True)
    assert again.fencing_token == outcome.fencing_token
    return "ran"


def _leave(engine: Engine, first: Operation, state: str) -> None:
    if state == "completed":
        engine.run(first, lambda lease: "first")
    elif state == "failed":
        with suppress(ZeroDivisionError):
            engine.run(first, lambda lease: 1 // 0)
    elif state == "released":
        with engine.attempt(first):
            pass
    else:  # its process died in the work
        lease = timedelta(hours=1) if state == "live" else timedelta(milliseconds=1)
        crashed = operation(first.key, transaction=first.transaction, lease=lease)
        won(engine.store.claim(crashed.request()))
        deadline = time.monotonic() + 5
        while state == "lapsed" and (record := engine.store.get(first.record_id)):
            if record.stale:
                break
            assert time.monotonic() < deadline, record
            time.sleep(0.002)


def _never(lease: Lease) -> None:
    raise AssertionError("ran")
