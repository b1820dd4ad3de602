"""Arguments and answers of the Redis store's scripts, as this package's own types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.utils.crypto import salted_hmac

from django_idempotency.claims import ClaimRequest
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.leases import Lease
from django_idempotency.options import Secret
from django_idempotency.records import NAMED, Record, State, as_duration

_CORRUPT = "A record in Redis is damaged: another program has changed it."
_CURSOR = re.compile(r"([^/]*)/([0-9]*)/((?:[0-9a-f]{32})*)")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_STATES = {state.value.encode(): state for state in State}
_named = attrgetter(*NAMED)


class Place(NamedTuple):
    """Where `browse` goes on: the next SCAN, after the record ids left over from the last one."""

    node: str = ""
    cursor: int | None = 0
    left: tuple[UUID, ...] = ()

    @property
    def is_end(self) -> bool:
        return self.cursor is None and not self.left

    def __str__(self) -> str:
        cursor = "" if self.cursor is None else self.cursor
        return f"{self.node}/{cursor}/{''.join(record_id.hex for record_id in self.left)}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place that `text` names; raise ValueError if it names none."""
        match = _CURSOR.fullmatch(text)
        if match is None or not any(match.groups()[1:]):
            raise ValueError("The Redis store did not make this cursor.")
        node, cursor, ids = match.groups()
        left = tuple(UUID(hex=ids[i : i + 32]) for i in range(0, len(ids), 32))
        return cls(node, int(cursor) if cursor else None, left)


def micros(duration: timedelta) -> int:
    return as_duration(duration) // _MICROSECOND


def time_of(micros: bytes | int) -> datetime:
    return _EPOCH + timedelta(0, 0, int(micros))


def owner_arguments(prefix: str, *, note: bool) -> list[Any]:
    """Return the values that mark the prefix as ours, by SECRET_KEY and each of its fallbacks."""
    secrets = map(Secret, (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))
    salt = "django_idempotency.stores.redis.store.owner"
    digests = [salted_hmac(salt, prefix, secret=x.value, algorithm="sha256") for x in secrets]
    return [int(note), *(digest.hexdigest() for digest in digests)]


def claim_arguments(request: ClaimRequest) -> list[Any]:
    lifetime = "" if request.on_stale == "refuse" else request.lifetime // _MICROSECOND
    return [
        request.token.hex,
        request.lease // _MICROSECOND,
        request.on_stale,
        lifetime,
        int(request.steps),
        *_named(request),
        *map(bytes.hex, request.fingerprints),
    ]


def proof_arguments(lease: Lease) -> list[Any]:
    return [lease.fencing_token, lease.token.hex]


def ending_arguments(lease: Lease) -> list[Any]:
    return [*proof_arguments(lease), micros(lease.request.retention)]


def claimed_of(request: ClaimRequest, answer: list[Any]) -> tuple[Lease | Record, int]:
    """Return the lease or record of a claim, and the number of the attempt that it won."""
    won, *values = answer
    if not won:
        record = record_of(request.record_id, values)
        if record is None:
            raise StoreError("Redis answered a claim with no record.")
        return record, record.attempts
    try:
        epoch, lease_until, now, taken_over, attempts, steps = values
        lease = Lease(
            request,
            int(epoch),
            lease_until=time_of(lease_until),
            claimed_at=time_of(now),
            takeover=bool(taken_over),
            journal=steps,
        )
    except (OverflowError, TypeError, ValueError) as error:
        raise StoreError(_CORRUPT) from error
    return lease, attempts


def kept_until(answer: bytes | int | None) -> datetime:
    if answer is None:
        raise LeaseLost
    if answer == 0:
        raise LeaseLost(gone=True)
    return time_of(answer)


def record_of(
    record_id: UUID, answer: Sequence[Any] | None, *, results: bool = True
) -> Record | None:
    """Return the record of a LOOK, its result left out or not; raise StoreError if incomplete."""
    if answer is None:
        return None
    columns, now = answer
    try:
        # In the order of KEPT.
        scope, key, operation, fingerprint, state, epoch, token, *others = columns
        lease_until, created_at, updated_at, expires_at, attempts, result, error, steps = others
        record = Record(
            record_id=record_id,
            scope=scope.decode(),
            key=key.decode(),
            operation=operation.decode(),
            fingerprint=None if fingerprint is None else bytes.fromhex(fingerprint.decode()),
            state=_STATES[state],
            epoch=int(epoch),
            token=UUID(token.decode()),
            lease_until=None if lease_until is None else time_of(lease_until),
            created_at=time_of(created_at),
            updated_at=time_of(updated_at),
            expires_at=None if expires_at is None else time_of(expires_at),
            attempts=int(attempts),
            result=result if results else None,
            error=error.decode(),
            now=time_of(now),
            steps=steps,
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as damage:
        raise StoreError(_CORRUPT) from damage
    in_progress = record.state is State.IN_PROGRESS
    may_be_held = in_progress or (record.state is State.FAILED and record.steps is not None)
    if (record.lease_until is None) is in_progress or (
        record.expires_at is None and not may_be_held
    ):
        raise StoreError(_CORRUPT)
    if record.state is State.COMPLETED and result is None:
        raise StoreError(_CORRUPT)
    return record
