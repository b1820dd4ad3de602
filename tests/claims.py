"""Requests and operations that the tests of each store begin with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.codecs import JSONCodec
from django_idempotency.engine import Operation
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.leases import Lease
from django_idempotency.policy import Policy
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
FINGERPRINT = b"1" * 32
OTHER_FINGERPRINT = b"2" * 32


def record_id(key: str = "key") -> UUID:
    return keys.record_id("test", "scope", key)


def asked(key: str = "key", **fields: Any) -> ClaimRequest:
    """A claim of `key`, under a token of its own."""
    defaults = {"scope": "scope", "fingerprints": (FINGERPRINT,)}
    return ClaimRequest(record_id=record_id(key), key=key, **{**defaults, **fields})


def operation(
    key: str = "key",
    *,
    transaction: str = "separate",
    fingerprint: bytes = FINGERPRINT,
    **policy: Any,
) -> Operation:
    """A call of `key` for the engine; its lease is not renewed unless `policy` says so."""
    return Operation(
        record_id=record_id(key),
        scope="scope",
        key=key,
        name="",
        fingerprint=Fingerprint(b"", (fingerprint,)),
        policy=Policy(**{"renew": False, **policy}),
        codec=JSONCodec(),
        transaction=transaction,
        unstorable_ok=transaction == "separate",
    )


def won(claimed: Lease | Record) -> Lease:
    assert isinstance(claimed, Lease), claimed
    return claimed


def lost(claimed: Lease | Record) -> Record:
    assert isinstance(claimed, Record), claimed
    return claimed


def found(store: BaseStore, key: str = "key") -> Record:
    """The record of `key`, which must be there."""
    record = store.get(record_id(key))
    assert record is not None
    return record
