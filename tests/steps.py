"""Journals that the tests of steps in Redis and in DynamoDB begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django_idempotency import journal
from django_idempotency.claims import ClaimRequest, Resolution
from django_idempotency.keys import new_token
from django_idempotency.leases import Lease
from django_idempotency.stores.base import BaseStore
from tests.claims import HOUR, asked, found, record_id, won

ENTRY = journal.entry("charge", bytes(range(256)))
INTENT = journal.intent("charge")


def noted(store: BaseStore, entries: Sequence[bytes] = (ENTRY,), **fields: Any) -> Lease:
    """A live lease under which these entries were noted; none of them holds the record."""
    lease = won(store.claim(asked(steps=True, **fields)))
    for entry in entries:
        store.note(lease, entry, duration=HOUR, held=False)
    return lease


def again(lease: Lease, **fields: Any) -> ClaimRequest:
    """The request of the next attempt."""
    return replace(lease.request, token=new_token(), **fields)


def resume(store: BaseStore, **decided: Any) -> bool:
    """Let an operator who sees the record as it is decide that the work goes on."""
    seen = found(store)
    decided = {"epoch": seen.epoch, "state": seen.state, **decided}
    return store.resolve(record_id(), Resolution("resume", **decided))


def comes_back_whole(store: BaseStore, number: int, size: int) -> None:
    """Fail unless the next claim gets so many entries as they were noted."""
    entries = [journal.entry(f"step {n}", bytes([n % 256]) * size) for n in range(number)]
    lease = noted(store, entries)
    store.fail(lease, "boom")

    retry = won(store.claim(again(lease)))

    is_kept = retry.journal == b"".join(entries)  # pytest would draw up the difference
    assert is_kept
    assert list(journal.read(retry.journal).results) == [f"step {n}" for n in range(number)]
