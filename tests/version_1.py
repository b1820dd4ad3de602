"""Version 1 of the fingerprints, as its releases made and compared them: a deploy has both."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.conf import store_for
from django_idempotency.fingerprint import canonical_payload
from django_idempotency.leases import Lease


def forms(parts: Sequence[bytes], secrets: Sequence[str] = ()) -> list[bytes]:
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    digests = [hmac.digest(secret.encode(), message, "sha256") for secret in secrets]
    digests.append(hashlib.sha256(message).digest())
    return [b"\1" + digest[1:] for digest in digests]


def of_call(payload: Any, operation: str = "", secrets: Sequence[str] = ()) -> list[bytes]:
    return forms([operation.encode(), canonical_payload(payload)], secrets)


def of_task(arguments: dict[str, Any]) -> list[bytes]:
    return forms([b"task", canonical_payload(arguments)])


def claimed(
    kind: str, scope: str, key: str, fingerprint: bytes, operation: str = "", **fields: Any
) -> Lease:
    """Claim as a worker of version 1 does."""
    record_id, fields["fingerprints"] = keys.record_id(kind, scope, key), (fingerprint,)
    lease = store_for().claim(ClaimRequest(record_id, scope, key, operation, **fields))
    assert isinstance(lease, Lease)
    return lease


def derived(record_id: UUID, name: str) -> str:
    """Derive a key as version 1 does: of the record alone."""
    return str(keys.derive(record_id, name))
