"""
Results encrypted at rest: AES-256-GCM under a key of each record's own.

An encrypted envelope has a flag in its head, which stays readable: version, flags, codec. Its
payload is the id of the key, a random nonce, and the ciphertext of the payload.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from django.views.decorators.debug import sensitive_variables

from django_idempotency.codecs import ENCRYPTED, is_encrypted
from django_idempotency.exceptions.base import StoreError, missing
from django_idempotency.options import Secret, secrets_in

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["opened", "problems_of", "sealed"]

_KEY_BYTES = 32
_ID_BYTES = 8
_NONCE_BYTES = 12
_ID = b"django_idempotency.encryption.id"
_RECORD = b"django_idempotency.encryption.record:"
_COMMAND = 'python -c "import secrets; print(secrets.token_urlsafe(32))"'


def problems_of(keys: Sequence[Secret]) -> list[str]:
    """Return why results cannot be encrypted under these keys, one sentence each; never a key."""
    if not keys:
        return []
    found = _wrong_keys(keys)
    try:
        _cipher(Secret(bytes(_KEY_BYTES)), UUID(int=0))
    except ImportError:
        found.append(str(missing("encryption_keys needs", "cryptography", "encryption")))
    return found


def _wrong_keys(keys: Sequence[Secret]) -> list[str]:
    return [
        f"encryption_keys: key {number} of {len(keys)} is not 32 random bytes, or their base64 "
        f"text. Make one with: {_COMMAND}"
        for number, key in enumerate(keys, 1)
        if len(_bytes_of(key)) != _KEY_BYTES
    ]


@sensitive_variables()
def sealed(envelope: bytes, record_id: UUID, keys: Sequence[Secret | str | bytes]) -> bytes:
    """
    Return an envelope encrypted under the first of `keys`; without keys, as it is.

    Raises ValueError for a key that is not 32 bytes, or their base64 text.
    """
    keys = secrets_in(keys)
    if not keys:
        return envelope
    key_id, key = next(iter(_by_id(keys).items()))
    head, payload = _parts(envelope)
    head = bytes((head[0], head[1] | ENCRYPTED)) + head[2:]
    nonce = os.urandom(_NONCE_BYTES)
    ciphertext = _cipher(key, record_id).encrypt(nonce, payload, head + record_id.bytes)
    return b"".join((head, key_id, nonce, ciphertext))


@sensitive_variables()
def opened(
    envelope: bytes | None, record_id: UUID, keys: Sequence[Secret | str | bytes]
) -> bytes | None:
    """
    Return an envelope decrypted; one that is not encrypted as it is, for `codecs.unpack` to judge.

    Raises StoreError if its key is missing, or if these bytes were not encrypted for this record,
    and ValueError as `sealed` does.
    """
    keys = secrets_in(keys)
    if envelope is None or not is_encrypted(envelope):
        return envelope
    from cryptography.exceptions import InvalidTag

    head, payload = _parts(envelope)
    key_id, rest = payload[:_ID_BYTES], payload[_ID_BYTES:]
    key = _by_id(keys).get(key_id)
    if key is None:
        raise StoreError(
            f"The stored result is encrypted under the key {key_id.hex()}, and encryption_keys "
            f"holds {', '.join(it.hex() for it in _by_id(keys)) or 'none'}: put the key back."
        )
    nonce, ciphertext = rest[:_NONCE_BYTES], rest[_NONCE_BYTES:]
    try:
        payload = _cipher(key, record_id).decrypt(nonce, ciphertext, head + record_id.bytes)
    except (InvalidTag, OverflowError, ValueError) as error:
        raise StoreError(
            "The stored result is damaged: it was not encrypted for this record."
        ) from error
    return bytes((head[0], head[1] & ~ENCRYPTED)) + head[2:] + payload


def _parts(envelope: bytes) -> tuple[bytes, bytes]:
    """Return the head of an envelope, which is authenticated and stays readable, and the rest."""
    start = 3 + envelope[2]
    return envelope[:start], envelope[start:]


def _cipher(key: Secret, record_id: UUID) -> AESGCM:
    """
    Return AES-GCM under the record's own key: HKDF-Expand (RFC 5869) of one block.

    So random nonces are safe however many results a key encrypts: only those of one record share
    a key, and under 2^32 of them no nonce repeats (NIST SP 800-38D, 8.3).
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(hmac.digest(key.value, _RECORD + record_id.bytes + b"\x01", "sha256"))


@functools.lru_cache(maxsize=16)
def _by_id(keys: tuple[Secret, ...]) -> dict[bytes, Secret]:
    """Return the keys by their ids, newest first; raise ValueError for what is no key."""
    if wrong := _wrong_keys(keys):
        raise ValueError(wrong[0])
    decoded = [Secret(_bytes_of(key)) for key in keys]
    return {hmac.digest(key.value, _ID, "sha256")[:_ID_BYTES]: key for key in decoded}


def _bytes_of(key: Secret) -> bytes:
    """Return the bytes of a key from its base64 text, in either alphabet; none if it is none."""
    if isinstance(key.value, bytes):
        return key.value
    if not isinstance(key.value, str):
        return b""
    text = Secret(key.value.replace("+", "-").replace("/", "_").rstrip("="))
    padding = "=" * (-len(text.value) % 4)
    try:
        return base64.b64decode(text.value + padding, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
