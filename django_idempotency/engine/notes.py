"""The notes of an attempt: what the journal of its record says, and what is appended to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from django_idempotency import codecs, journal, keys
from django_idempotency.codecs import encryption
from django_idempotency.exceptions import LeaseLost, ResultTooLarge, StoreError
from django_idempotency.leases import Lease
from django_idempotency.observers import logger
from django_idempotency.policy import Policy
from django_idempotency.stores.base import BaseStore

_JSON = codecs.JSONCodec()
#: The shortest result.
_SHORTEST = codecs.pack(_JSON, 0, max_bytes=1)


class Notes:
    """
    The notes of one attempt, by the names of its steps: threads may share it.

    A name is known as noted once the commit of its note is known. Where that is not known, the
    journal that the next claim reads decides.
    """

    def __init__(self, store: BaseStore, lease: Lease, policy: Policy) -> None:
        """Read the journal of earlier attempts, all of it: raise StoreError for damage (S16)."""
        self._store = store
        self._lease = lease
        self._policy = policy
        self._lock = threading.Lock()
        kept = journal.read(lease.journal)
        #: The decoded results of the steps that are noted.
        self.results = {
            name: self._decoded(name, payload) for name, payload in kept.results.items()
        }
        #: The calls whose intents stand, or may stand: they may have been made or not.
        self.uncertain = set(kept.uncertain)
        #: The bytes of the entries that were sent, and of which it is not known whether they stand.
        self.unknown: dict[str, int] = {}
        #: The names whose notes are on their way and let the record expire.
        self._unheld: set[str] = set()
        self._note_has_ended = threading.Condition(self._lock)
        self._size = len(lease.journal or b"")
        #: The attempt has ended: nothing is noted any more.
        self.closed = False
        #: When the last note was written; at first, when the lease was won.
        self.noted_at = time.monotonic()
        #: Keeps the lease from now on; set by the engine.
        self.renew: Callable[[], None] | None = None

    @property
    def any_written(self) -> bool:
        """Whether a note is in the record, or may be there (T11)."""
        return bool(self.results or self.unknown or self.uncertain)

    # What is appended.

    def write(self, name: str, entry: bytes, *, settles: str = "") -> None:
        """
        Send an entry; raise ResultTooLarge, or LeaseLost after the attempt's end.

        The record is held while a call is uncertain, but for the one that this entry `settles`. An
        entry that says what has become of a call is sent beyond the limit, too: to refuse it would
        leave a call that was made without its note (T8).
        """
        duration = self._policy.attempt_lease()
        try:
            with self._lock:
                if self.closed:
                    raise LeaseLost(f"The attempt has ended before {name!r}, which is not noted.")
                if not settles:
                    self._refuse_too_much(name, entry)
                self._size += len(entry)
                self.unknown[name] = len(entry)
                # With "refuse" it lasts until an operator decides.
                held = self._policy.on_stale == "refuse" or bool(self.uncertain - {settles})
                if not held:
                    self._unheld.add(name)
            self._store.note(self._lease, entry, duration=duration, held=held)
        finally:
            with self._lock:
                self._unheld.discard(name)
                self._note_has_ended.notify_all()

    def refuse_full(self, name: str) -> None:
        """Raise ResultTooLarge if there is no room for the shortest entry: nothing runs (T8)."""
        self._refuse_too_much(name, journal.entry(name, _SHORTEST))

    def _refuse_too_much(self, name: str, entry: bytes) -> None:
        size, most = self._size + len(entry), self._policy.max_steps_bytes
        if size > most:
            raise ResultTooLarge(
                f"With {name!r} the steps of this record have {size} bytes, and max_steps_bytes "
                f"allows {most}. Raise it: the next attempt goes on."
            )

    def write_alone(self, name: str, entry: bytes, *, settles: str = "") -> None:
        """See `write`: the entry is no part of a transaction, and stands when this returns."""
        try:
            self.write(name, entry, settles=settles)
        except BaseException as error:
            if isinstance(self.marked(error), LeaseLost):
                self.forget(name)
            raise

    def keep(self, name: str, result: Any) -> None:
        """Keep the result of a step whose note has committed, and the lease from now on (T16)."""
        with self._lock:
            self.results[name] = result
            self.uncertain.discard(name)
            self._landed(name)
        logger.debug("Record %s: %r is noted.", keys.short(self._lease.record_id), name)

    def forget(self, name: str) -> None:
        """Forget a note that was refused, or rolled back with its work."""
        with self._lock:
            self._size -= self.unknown.pop(name, 0)

    def marked(self, error: BaseException) -> Any:
        """Return an error of the store's, marked as one about this record, or its lost lease."""
        if isinstance(error, StoreError):
            error.record_id = self._lease.record_id
        elif isinstance(error, LeaseLost) and not self.closed:
            self._lease.mark_lost(gone=error.gone)
        return error

    def close(self) -> None:
        """Refuse what comes after the attempt's end: hooks, and threads that outlive it."""
        with self._lock:
            self.closed = True

    # The intents of calls that may not be repeated (T12).

    def intend(self, name: str) -> None:
        """
        Note that the call is about to be made; raise LeaseLost where it must not be made.

        From then on each note holds the record. One that does not, and is on its way, could land
        after the intent and end the hold (S13), so the intent waits for it.
        """
        with self._lock:
            was_uncertain = name in self.uncertain
            self.uncertain.add(name)
            # No deadlock: a note on its way waits for the store alone, where this thread has no
            # transaction open (T6).
            self._note_has_ended.wait_for(lambda: not self._unheld)
        try:
            self.write_alone(name, journal.intent(name))
        except (LeaseLost, ResultTooLarge):  # it does not stand
            if not was_uncertain:
                self.uncertain.discard(name)
            raise
        with self._lock:
            self._landed(name)

    def withdraw(self, name: str) -> None:
        """Note that a call was not made."""
        self.write_alone(name, journal.withdrawn(name), settles=name)
        with self._lock:
            self.uncertain.discard(name)
            self._landed(name)

    def _landed(self, name: str) -> None:
        """Take note that the entry of a name stands, which has extended the lease (T16)."""
        self.unknown.pop(name, None)
        self.noted_at = time.monotonic()
        if self.renew is not None and not self.closed:
            self.renew()

    # Results as bytes and back.

    def packed(self, name: str, returned: Any) -> tuple[Any, bytes]:
        """Return what each attempt gets, this one too (T2), and its entry; raise TypeError (T8)."""
        most, record_id = self._policy.max_steps_bytes, self._lease.record_id
        try:
            envelope = codecs.pack(_JSON, returned, max_bytes=most)
        except ResultTooLarge:
            raise ResultTooLarge(
                f"The result of {name!r} is larger than max_steps_bytes, which allows {most}: "
                f"return an id, not the document."
            ) from None
        except TypeError as error:
            raise TypeError(f"{name!r} cannot be noted. {error}") from None
        sealed = encryption.sealed(
            envelope, keys.of_step(record_id, name), self._policy.encryption_keys
        )
        return codecs.unpack(_JSON, envelope, max_bytes=most), journal.entry(name, sealed)

    def _decoded(self, name: str, payload: bytes) -> Any:
        """Return the result in an entry; raise StoreError if it is not that of this name (T18)."""
        sealed_for = keys.of_step(self._lease.record_id, name)
        envelope = encryption.opened(payload, sealed_for, self._policy.encryption_keys)
        return codecs.unpack(_JSON, envelope, max_bytes=self._policy.max_steps_bytes)
