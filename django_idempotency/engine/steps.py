"""The steps of an attempt: pieces of its work that commit one by one, each with its result."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import IntegrityError
from django.utils.asyncio import async_unsafe

from django_idempotency import codecs, journal, keys
from django_idempotency.callables import is_coroutine_function, refuse_lazy, signature_problem
from django_idempotency.codecs import encryption
from django_idempotency.engine.cancellation import finish
from django_idempotency.engine.modes import OpenTransactions
from django_idempotency.exceptions import (
    LeaseLost,
    NotDone,
    ResultTooLarge,
    StoreError,
    TransactionOpen,
    Uncertain,
    WorkRolledBack,
)
from django_idempotency.leases import Lease
from django_idempotency.observers import logger
from django_idempotency.policy import Policy
from django_idempotency.stores.base import BaseStore
from django_idempotency.transactions.errors import is_serialization_failure

__all__ = ["Steps"]

_JSON = codecs.JSONCodec()
#: The steps and calls of which the running code is part, by the attempts that they belong to.
_around: ContextVar[tuple[Steps, ...]] = ContextVar("idempotency_steps", default=())


class Steps:
    """
    The steps of one attempt, and what is known of each name: threads may share it.

    A name is known as noted once the commit of its note is known. Where that is not known, the
    journal that the next claim reads decides, and this attempt does not ask again.
    """

    def __init__(self, store: BaseStore, lease: Lease, policy: Policy) -> None:
        """Read the journal of earlier attempts, all of it: raise StoreError for damage (S16)."""
        self._store = store
        self._lease = lease
        self._policy = policy
        self._lock = threading.Lock()
        kept = journal.read(lease.journal)
        #: The decoded results of the steps that are noted, by name.
        self._results = {
            name: self._decoded(name, payload) for name, payload in kept.results.items()
        }
        #: The calls whose intents stand, or may stand: they may have been made or not.
        self._uncertain = set(kept.uncertain)
        #: How many results earlier attempts have noted, and which of these were not asked for yet.
        self.found = len(self._results)
        self._unused = dict.fromkeys(self._results)
        #: The names that run, or whose result was given.
        self._asked: set[str] = set()
        #: The bytes of the entries that were sent, and of which it is not known whether they stand.
        self._sent: dict[str, int] = {}
        #: The names whose notes are on their way and let the record expire.
        self._unheld: set[str] = set()
        self._note_has_ended = threading.Condition(self._lock)
        self._size = len(lease.journal or b"")
        self._closed = False
        #: When the last note was written; at first, when the lease was won.
        self.noted_at = time.monotonic()
        #: Keeps the lease from now on; set by the engine.
        self.renew: Callable[[], None] | None = None
        if self.found:
            logger.info(
                "Record %s: the work goes on after its noted steps, %d so far.",
                keys.short(lease.record_id),
                self.found,
            )

    @property
    def any_noted(self) -> bool:
        """Whether a note is in the record, or may be there (T11)."""
        return bool(self._results or self._sent or self._uncertain)

    @property
    def any_uncertain(self) -> bool:
        """Whether a call may have been made or not, so that the record is held (S13)."""
        return bool(self._uncertain)

    # The four calls.

    def step(
        self, name: str, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """See `Lease.step`."""
        _check_name(name)
        _check_callable(name, work, f"step({name!r}, function, argument)")
        self._refuse_around(name, "step")
        with self._asking(name, "step") as is_noted:
            return self._results[name] if is_noted else self._run(name, work, args, kwargs)

    async def astep(
        self, name: str, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """See `Lease.astep`: a cancellation waits for the note (T15)."""
        ended: list[bool] = []

        def step() -> Any:
            result = self.step(name, work, args, kwargs)
            ended.append(True)
            return result

        try:
            return await finish(sync_to_async(step)())
        except asyncio.CancelledError:
            if ended:  # its result was not given, and may be asked for: after a time-out, say
                with self._lock:
                    self._asked.discard(name)
            raise

    def external(self, name: str, call: Callable[[str], Any], uncertain: Any) -> Any:
        """See `Lease.external`."""
        _check_name(name)
        _check_call(name, call, uncertain)
        for function in (call, uncertain):
            _refuse_coroutine(name, function)
        self._refuse_around(name, "external")
        with self._asking(name, "external") as is_noted:
            if is_noted:
                return self._results[name]
            key = self._lease.derive_key(name)
            if uncertain == "repeat":
                return self._note_answer(name, call(key), uncertain)
            if name in self._uncertain:
                if uncertain == "refuse":
                    raise self._refusal(name, key)
                with suppress(NotDone):
                    return self._note_answer(name, uncertain(key), uncertain)
            self._intend(name)
            try:
                answer = call(key)
            except NotDone:
                self._take_back(name)
                raise
            return self._note_answer(name, answer, uncertain)

    async def aexternal(
        self, name: str, call: Callable[[str], Awaitable[Any]], uncertain: Any
    ) -> Any:
        """
        See `Lease.aexternal`.

        A cancellation waits for the note, and for a call that could not be repeated (T15).
        """
        _check_name(name)
        _check_call(name, call, uncertain)
        await sync_to_async(self._refuse_around)(name, "aexternal")
        with self._asking(name, "aexternal") as is_noted:
            if is_noted:
                return self._results[name]
            key = self._lease.derive_key(name)
            if uncertain == "repeat":
                answer = await _awaited(name, call(key))
                return await finish(sync_to_async(self._note_answer)(name, answer, uncertain))
            return await finish(self._call_once(name, key, call, uncertain))

    async def _call_once(
        self, name: str, key: str, call: Callable[[str], Awaitable[Any]], uncertain: Any
    ) -> Any:
        """Do what `external` does with a call that may not be repeated."""
        note_answer = sync_to_async(self._note_answer)
        if name in self._uncertain:
            if uncertain == "refuse":
                raise self._refusal(name, key)
            with suppress(NotDone):
                return await note_answer(name, await _awaited(name, uncertain(key)), uncertain)
        await sync_to_async(self._intend)(name)
        try:
            answer = await _awaited(name, call(key))
        except NotDone:
            await sync_to_async(self._take_back)(name)
            raise
        return await note_answer(name, answer, uncertain)

    # Calls that may not be repeated (T12).

    def _refusal(self, name: str, key: str) -> Uncertain:
        """Tell that an operator has to decide about a call; return the error that says so."""
        logger.error(
            "Record %s: nobody knows whether the call %r was made. An operator has to decide: see "
            "idempotency_resume.",
            keys.short(self._lease.record_id),
            name,
        )
        return Uncertain(
            f"Nobody knows whether the call {name!r} was made: an attempt died in it, or it "
            f"raised. An operator has to decide.",
            step=name,
            key=key,
            record_id=self._lease.record_id,
        )

    def _intend(self, name: str) -> None:
        """
        Note that the call is about to be made; raise LeaseLost where it must not be made.

        From then on each note holds the record. One that does not, and is on its way, could land
        after the intent and end the hold (S13), so the intent waits for it.
        """
        with self._lock:
            was_uncertain = name in self._uncertain
            self._uncertain.add(name)
            # No deadlock: a note on its way waits for the store alone, where this thread has no
            # transaction open (T6).
            self._note_has_ended.wait_for(lambda: not self._unheld)
        try:
            self._note_alone(name, journal.intent(name))
        except (LeaseLost, ResultTooLarge):  # it does not stand
            if not was_uncertain:
                self._uncertain.discard(name)
            raise
        with self._lock:
            self._landed(name)

    def _take_back(self, name: str) -> None:
        """Note that a call was not made."""
        self._note_alone(name, journal.withdrawn(name), settles=name)
        with self._lock:
            self._uncertain.discard(name)
            self._landed(name)

    # What is asked first, before anything runs.

    def _refuse_around(self, name: str, word: str) -> None:
        """
        Raise RuntimeError inside of another step or call of the attempt (T5).

        Raises TransactionOpen where a rollback could undo the work, and not its note (T6).
        """
        if self._store.using is not None:
            _refuse_loop()  # or else a call would be made that cannot be noted
        if self in _around.get():
            raise RuntimeError(
                f"{word}({name!r}) is inside of another step or call of this attempt: each commits "
                f"by itself. Call them one after the other."
            )
        if not OpenTransactions(self._store).may_wait:
            raise TransactionOpen(
                f"{word}() commits on its own, and a transaction is open here. Call it outside of "
                f"atomic(), with autocommit on."
            )

    @contextmanager
    def _asking(self, name: str, word: str) -> Iterator[bool]:
        """Take the name for the block, and yield whether its result is noted (T3, T4)."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{word}({name!r}) comes too late: its attempt has ended.")
            if name in self._asked:
                raise RuntimeError(
                    f"{name!r} names another step of this attempt. In a loop, put the place into "
                    f'the name: f"rows-{{start}}".'
                )
            if name in self._sent:
                raise self._told(StoreError(f"Whether {name!r} was noted is not known; try again."))
            self._lease.check()
            self._asked.add(name)
            self._unused.pop(name, None)
        _around.set((*_around.get(), self))
        try:
            yield name in self._results
        except BaseException:
            with self._lock:
                self._asked.discard(name)  # what raises may be asked for again (T7)
            raise
        finally:
            _around.set(tuple(other for other in _around.get() if other is not self))

    # The work and its note.

    def _run(
        self, name: str, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the work in a transaction whose last statement is its note."""
        store, lease = self._store, self._lease
        committed: list[bool] = []
        result, place = None, "store"
        try:
            with store.atomic(committed=partial(committed.append, True)):
                store.fence(lease)
                place = "work"
                returned = refuse_lazy(f"The work of {name!r}", work(*args, **kwargs))
                place = "store"
                if store.rolled_back():
                    raise WorkRolledBack(
                        f"The work of {name!r} has returned, and can only be rolled back: "
                        f"set_rollback(True) was called, a database error was swallowed outside of "
                        f"an inner atomic(), or a statement has ended its transaction."
                    )
                result, entry = self._packed(name, returned)
                self._note(name, entry)
                place = "commit"
        except BaseException as error:
            if committed:  # a hook raised: the step stands (T9)
                self._keep(name, result)
                raise
            if place != "work":
                self._told(error)
            # Where the answer to a COMMIT is lost, or to the note of a store without one, this
            # attempt does not know what holds.
            is_refused = isinstance(error, (IntegrityError, LeaseLost))
            is_undone = place != "commit" and store.supports_join
            if is_refused or is_undone or is_serialization_failure(error):
                self._withdraw(name)
            raise
        self._keep(name, result)
        return result

    def _note_answer(self, name: str, answer: Any, uncertain: Any) -> Any:
        """Note what a call has returned, by a write of its own."""
        try:
            result, entry = self._packed(name, refuse_lazy(f"The call {name!r}", answer))
            self._note_alone(name, entry, settles=name)
        except (ResultTooLarge, TypeError) as error:
            follows = "each retry will make it again"
            if uncertain != "repeat":
                follows = "counts as uncertain"
            raise type(error)(f"{error} The call was made, and {follows}.") from None
        self._keep(name, result)
        return result

    def _note_alone(self, name: str, entry: bytes, *, settles: str = "") -> None:
        """Send an entry by a write of its own; see `_note`."""
        try:
            self._note(name, entry, settles=settles)
        except BaseException as error:
            if isinstance(self._told(error), LeaseLost):
                self._withdraw(name)
            raise

    def _note(self, name: str, entry: bytes, *, settles: str = "") -> None:
        """
        Send an entry; raise ResultTooLarge, or LeaseLost after the attempt's end.

        The record is held while a call is uncertain, but for the one that this entry `settles`.
        """
        duration, most = self._policy.attempt_lease(), self._policy.max_steps_bytes
        try:
            with self._lock:
                if self._closed:
                    raise LeaseLost(f"The attempt has ended before {name!r}, which is not noted.")
                size = self._size + len(entry)
                # A withdrawal has no limit: without it the call would be uncertain.
                if size > most and entry != journal.withdrawn(name):
                    raise ResultTooLarge(
                        f"With {name!r} the steps of this record have {size} bytes, and "
                        f"max_steps_bytes allows {most}."
                    )
                self._size, self._sent[name] = size, len(entry)
                # With "refuse" it lasts until an operator decides.
                held = self._policy.on_stale == "refuse" or bool(self._uncertain - {settles})
                if not held:
                    self._unheld.add(name)
            self._store.note(self._lease, entry, duration=duration, held=held)
        finally:
            with self._lock:
                self._unheld.discard(name)
                self._note_has_ended.notify_all()

    def _keep(self, name: str, result: Any) -> None:
        """Keep the result of a step whose note has committed, and the lease from now on (T16)."""
        with self._lock:
            self._results[name] = result
            self._uncertain.discard(name)
            self._landed(name)
        logger.debug("Record %s: %r is noted.", keys.short(self._lease.record_id), name)

    def _landed(self, name: str) -> None:
        """Take note that the entry of a name stands, which has extended the lease (T16)."""
        self._sent.pop(name, None)
        self.noted_at = time.monotonic()
        if self.renew is not None and not self._closed:
            self.renew()

    def _withdraw(self, name: str) -> None:
        """Forget a note that was refused, or rolled back with its work."""
        with self._lock:
            self._size -= self._sent.pop(name, 0)

    def _told(self, error: BaseException) -> Any:
        """Return an error of the store's as one that is about this record."""
        if isinstance(error, StoreError):
            error.record_id = self._lease.record_id
        elif isinstance(error, LeaseLost) and not self._closed:
            self._lease.mark_lost(gone=error.gone)
        return error

    # Results as bytes and back.

    def _packed(self, name: str, returned: Any) -> tuple[Any, bytes]:
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

    # The end of the attempt.

    def close(self) -> None:
        """Refuse what comes after the attempt's end: hooks, and threads that outlive it."""
        with self._lock:
            self._closed = True

    def tell_unused(self) -> None:
        """Warn of what the completion has dropped: unused notes (T10), and uncertain calls."""
        record = keys.short(self._lease.record_id)
        if self._unused:
            logger.warning(
                "Record %s is completed, and its work has not asked for what was noted as %s: were "
                "these steps removed or renamed?",
                record,
                _listed(self._unused),
            )
        if self._uncertain:
            logger.warning(
                "Record %s is completed, and nobody knows whether these calls were made: %s. Its "
                "work has swallowed what they raised, or does not ask for them any more.",
                record,
                _listed(sorted(self._uncertain)),
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


@async_unsafe("step() and external() wait for the database: await astep() or aexternal() instead.")
def _refuse_loop() -> None:
    """Raise Django's SynchronousOnlyOperation in a coroutine."""


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"The name of a step is a str, not {type(name).__name__}.")
    if not 1 <= len(name) <= journal.LONGEST_NAME:
        raise ValueError(
            f"The name of a step has 1 to {journal.LONGEST_NAME} characters, not {len(name)}."
        )
    name.encode()  # a ValueError for half of a surrogate pair, which no text column can hold


def _check_callable(name: str, work: Any, example: str) -> None:
    if not callable(work):
        raise TypeError(
            f"{name!r} got a {type(work).__name__} in the place of a function. Give the function "
            f"and its arguments, not its result: {example}."
        )
    _refuse_coroutine(name, work)


def _check_call(name: str, call: Any, uncertain: Any) -> None:
    if not callable(call):
        raise TypeError(
            f"{name!r} got a {type(call).__name__} in the place of a function of the key: "
            f"lambda key: …"
        )
    if not callable(uncertain) and uncertain not in ("repeat", "refuse"):
        raise ValueError(
            f'uncertain must be "repeat", "refuse" or a function of the key, not {uncertain!r}: it '
            f"says what follows if an earlier attempt died in the call."
        )
    for what, function in ((f"The call {name!r}", call), (f"uncertain= of {name!r}", uncertain)):
        if callable(function) and (problem := signature_problem(what, function, "key")):
            raise TypeError(problem)


async def _awaited(name: str, answer: Any) -> Any:
    if not isawaitable(answer):
        raise TypeError(f"aexternal() awaits its functions, and {name!r} returned no awaitable.")
    return await answer


def _refuse_coroutine(name: Any, function: Any) -> None:
    if is_coroutine_function(function):
        raise TypeError(
            f"What {name!r} calls is a coroutine function: give astep() a plain function, and "
            f"await aexternal() for a coroutine."
        )
