"""Results too large for an item of DynamoDB, kept as objects in one of the project's storages."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from uuid import UUID, uuid4

from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages

from django_idempotency import keys
from django_idempotency.exceptions import ResultTooLarge, StoreError
from django_idempotency.observers import logger

#: The most bytes of a result in its item. DynamoDB's limit for an item is 400 KiB, names
#: included; the rest is for the other attributes.
INLINE_BYTES = 390 * 1024


class Overflow:
    """
    Objects in the storage of an alias of STORAGES.

    The name of an object depends on record, attempt and content. So a storage that overwrites can
    replace an object only with the same bytes, and never one result with another.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def write(self, record_id: UUID, token: UUID, result: bytes) -> tuple[str, bytes]:
        """
        Write `result`, and return the object's name and its SHA-256.

        Only the completion refers to the object, and the completion is fenced: so the object of an
        owner that lost its lease is never read. Raises ResultTooLarge if the storage fails: the
        work is done, so the caller completes the record without its result.
        """
        digest = hashlib.sha256(result).digest()
        try:
            name = f"idempotency/{record_id}/{token}-{digest.hex()}"
            name = self._storage.save(name, ContentFile(result))
        except Exception as error:  # whatever a storage raises, it could not keep the result
            failure = ResultTooLarge(
                f"The result of record {keys.short(record_id)} is too large for an item of "
                f"DynamoDB and could not be written to the storage {self.alias!r}: "
                f"{type(error).__name__}."
            )
            logger.error("A large result is not kept. %s", failure)
            raise failure from error
        return name, digest

    def read(self, record_id: UUID, name: str, digest: bytes) -> bytes | None:
        """
        Return the result that `write` wrote; if it is gone or altered, log an error and return
        None.

        Raises StoreError for a storage that does not answer.
        """
        try:
            result = self._load(name)
        except FileNotFoundError:
            result = None
        except Exception as error:  # whatever a storage raises, it may answer later
            raise StoreError(
                f"The result of record {keys.short(record_id)} could not be read from the "
                f"storage {self.alias!r}: {type(error).__name__}."
            ) from error
        if result is not None and hashlib.sha256(result).digest() == digest:
            return result
        logger.error(
            "The result of record %s in the storage %r is %s.",
            keys.short(record_id),
            self.alias,
            "gone" if result is None else "not what was written",
        )
        return None

    def erase(self, record_id: UUID) -> None:
        """
        Delete all objects of a record, also those of attempts that lost their lease.

        Raises StoreError for a storage that cannot list or delete.
        """
        folder = f"idempotency/{record_id}"
        storage = self._storage
        try:
            for name in storage.listdir(folder)[1]:
                storage.delete(f"{folder}/{name}")
            if storage.exists(folder):  # a storage with folders
                with suppress(OSError):  # an attempt has written an object meanwhile
                    storage.delete(folder)
        except FileNotFoundError:  # a storage with folders, and none of this record
            pass
        except Exception as error:  # whatever a storage raises
            raise StoreError(
                f"The objects of record {keys.short(record_id)} in the storage {self.alias!r} "
                f"could not be deleted: {type(error).__name__}."
            ) from error

    def probe(self) -> str | None:
        """
        Write, read and delete an object; return the error of its deletion, if it failed.

        Raises StoreError, which names the failed step, for a storage that cannot be used.
        """
        content, step = uuid4().bytes, "written"
        try:
            name = self._storage.save(f"idempotency/check/{uuid4()}", ContentFile(content))
            step = "read"
            is_whole = self._load(name) == content
        except Exception as error:  # whatever a storage raises
            raise StoreError(f"an object could not be {step}: {type(error).__name__}.") from error
        try:
            self._storage.delete(name)
        except Exception as error:
            return f"{name} could not be deleted: {type(error).__name__}."
        if not is_whole:
            raise StoreError("an object was not read as it was written.")
        return None

    @property
    def _storage(self) -> Storage:
        return storages[self.alias]

    def _load(self, name: str) -> bytes:
        with self._storage.open(name, "rb") as file:
            return bytes(file.read())
