"""What one attempt makes of the record of another, which another adapter or mode has written."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import connections

from django_idempotency.engine import Attempt
from django_idempotency.exceptions import FingerprintMismatch, InProgress
from tests.claims import OTHER_FINGERPRINT, operation, won

__all__ = ["MEANS", "READERS", "what_it_means"]

#: What a record means to the next attempt, by what it is: with the same fingerprint, and another.
MEANS = {
    "completed": ("replayed first", "mismatch"),
    "failed": ("ran", "mismatch"),
    "released": ("ran", "ran"),
    "live": ("in progress", "mismatch"),
    "lapsed": ("ran", "mismatch"),
}


def _attempt(engine, operation, work):
    with engine.attempt(operation) as attempt:
        if not attempt.replayed:
            attempt.complete(work(attempt.lease))
    return attempt.outcome


async def _aattempt(engine, operation, work):
    async with engine.aattempt(operation) as attempt:
        if not attempt.replayed:
            attempt.complete(work(attempt.lease))
    return attempt.outcome


def _loop(call):
    async def main(*arguments):
        try:
            return await call(*arguments)
        finally:
            await sync_to_async(connections.close_all)()

    return lambda *arguments: asyncio.run(main(*arguments))


#: How an attempt is made: a call, a block, and both of a coroutine.
READERS = {
    "run": lambda engine, operation, work: engine.run(operation, work),
    "attempt": _attempt,
    "arun": _loop(lambda engine, operation, work: engine.arun(operation, sync_to_async(work))),
    "aattempt": _loop(_aattempt),
}


def what_it_means(engine, reader, *, states=tuple(MEANS), wrote="separate", reads="separate"):
    """Return what records in `states` mean to `reader`, in the form of `MEANS`."""
    return {
        state: tuple(_meet(engine, reader, wrote, reads, state, same) for same in (True, False))
        for state in states
    }


def _meet(engine, reader, wrote, reads, state, same):
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
    again = engine.run(operation(key, transaction=wrote, **fingerprints), lambda lease: "ran again")
    assert (outcome.result, again.result, again.replayed) == ("second", "second", True)
    assert again.fencing_token == outcome.fencing_token
    return "ran"


def _leave(engine, first, state):
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
        won(engine.store.claim(Attempt(crashed, engine.store).request))
        deadline = time.monotonic() + 60
        while state == "lapsed" and not (record := engine.store.get(first.record_id)).stale:
            assert time.monotonic() < deadline, record
            time.sleep(0.002)
