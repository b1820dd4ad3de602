"""Requests, operations and records that the tests of the database store begin with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import tests.claims
from django_idempotency.claims import ClaimRequest
from django_idempotency.codecs import JSONCodec, pack
from django_idempotency.engine import Operation
from django_idempotency.leases import Lease
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from tests.app.models import Effect
from tests.claims import FINGERPRINT, OTHER_FINGERPRINT, lost, record_id, won
from tests.claims import asked as claim_request

__all__ = ["FINGERPRINT", "OTHER_FINGERPRINT", "claim_request", "lost", "record_id", "won"]

RETENTION = timedelta(hours=24)
LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)
Leave = Callable[[DatabaseStore, ClaimRequest], Lease]


class Boom(Exception):
    """What the work of a test raises."""


def operation(key: str = "key", *, transaction: str = "joined", **fields: Any) -> Operation:
    """See `tests.claims.operation`."""
    return tests.claims.operation(key, transaction=transaction, **fields)


def packed(result: Any) -> bytes:
    """`result` as a completion stores it."""
    return pack(JSONCodec(), result, max_bytes=1024)


def work(name: str) -> Callable[[Lease], str]:
    """Work that leaves an Effect of this name, which is also its result."""

    def leave_effect(lease: Lease) -> str:
        Effect.objects.create(name=name)
        return name

    return leave_effect


def effects(using: str = "default") -> list[str]:
    """The names of the effects that this session sees, oldest first."""
    return list(Effect.objects.using(using).order_by("pk").values_list("name", flat=True))


def lapse(key: str = "key") -> None:
    """Let the lease on `key` have lapsed long ago."""
    assert IdempotencyRecord.objects.filter(pk=record_id(key)).update(lease_until=LONG_AGO) == 1


def expire(key: str = "key") -> None:
    """Let the record of `key` have expired long ago (unless it has a live lease)."""
    assert IdempotencyRecord.objects.filter(pk=record_id(key)).update(expires_at=LONG_AGO) == 1


# Records in each state, by name; each function leaves one for the key of `request`.


def absent(store: DatabaseStore, request: ClaimRequest) -> None:
    pass


def live(store: DatabaseStore, request: ClaimRequest) -> Lease:
    return won(store.claim(request))


def _then(before: Leave, change: Callable[[DatabaseStore, Lease], object]) -> Leave:
    def leave(store: DatabaseStore, request: ClaimRequest) -> Lease:
        lease = before(store, request)
        change(store, lease)
        return lease

    return leave


lapsed = _then(live, lambda store, lease: lapse(lease.request.key))
failed = _then(live, lambda store, lease: store.fail(lease, "builtins.RuntimeError"))
released = _then(live, lambda store, lease: store.release(lease))
completed = _then(
    live, lambda store, lease: store.complete(lease, packed("first"), retention=RETENTION)
)
expired = _then(completed, lambda store, lease: expire(lease.request.key))
expired_lapsed = _then(lapsed, lambda store, lease: expire(lease.request.key))
live_beyond_expiry = _then(live, lambda store, lease: expire(lease.request.key))


def state_of(store: DatabaseStore, key: str = "key") -> State | None:
    """The state of the record of `key`, None if there is none."""
    record = store.get(record_id(key))
    return None if record is None else record.state
