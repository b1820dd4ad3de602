"""Results too large for an item of DynamoDB, kept as objects in one of the project's storages."""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.exceptions import StoreError

__all__ = ["INLINE_BYTES", "Overflow"]

#: The most that a result may have to be kept in its item. DynamoDB's limit for an item is
#: 400 KiB, names included; what is left is for the other attributes.
INLINE_BYTES = 390 * 1024


class Overflow:
    """Objects in the storage of an alias of STORAGES: written once, named by record and attempt."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def write(self, record_id: UUID, token: UUID, result: bytes) -> tuple[str, bytes]:
        """
        Keep `result` and return the object's name and its SHA-256; raise StoreError.

        Nothing refers to it before the completion does, which is fenced: what an owner that lost
        its lease has written is never read.
        """
        from django.core.files.base import ContentFile

        try:
            name = self._storage().save(f"idempotency/{record_id}/{token}", ContentFile(result))
        except Exception as error:  # whatever a storage raises, the store could not keep it
            raise StoreError(
                f"The result of record {keys.short(record_id)} could not be written to the "
                f"storage {self.alias!r}: {type(error).__name__}."
            ) from error
        return name, hashlib.sha256(result).digest()

    def read(self, record_id: UUID, name: str, digest: bytes) -> bytes:
        """Return what `write` kept; raise StoreError if it is gone or is not what was written."""
        try:
            with self._storage().open(name, "rb") as file:
                result = bytes(file.read())
        except Exception as error:  # whatever a storage raises, the result is not to be had
            raise StoreError(
                f"The result of record {keys.short(record_id)} could not be read from the "
                f"storage {self.alias!r}: {type(error).__name__}."
            ) from error
        if hashlib.sha256(result).digest() != digest:
            raise StoreError(
                f"The result of record {keys.short(record_id)} in the storage {self.alias!r} is "
                f"not what was written."
            )
        return result

    def _storage(self) -> Any:
        from django.core.files.storage import storages

        return storages[self.alias]
