"""The steps of an attempt: pieces of its work that commit one by one, each with its result."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DataError, IntegrityError, ProgrammingError
from django.utils.asyncio import async_unsafe

from django_idempotency import journal, keys
from django_idempotency.callables import is_coroutine_function, refuse_lazy, signature_problem
from django_idempotency.engine.notes import Notes
from django_idempotency.engine.operation import OpenTransactions
from django_idempotency.engine.threads import finish
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
from django_idempotency.transactions.errors import is_raised_by_server, is_serialization_failure

#: Tells of two moments of this process which one came first.
_moments = itertools.count(1)
#: The steps and calls of which the running code is part: each is a list of the attempt that it
#: belongs to, and empty once it has ended. A task that it has started may live longer.
_around: ContextVar[tuple[list[Steps], ...]] = ContextVar("idempotency_steps", default=())
#: A server's own answers to a COMMIT: a constraint or a trigger that it has deferred has refused.
_REFUSALS = (IntegrityError, DataError, ProgrammingError)


class Steps:
    """
    The steps of one attempt, by their names: threads may share it.

    A name is asked for once. It may be asked for again after it has raised, unless it is not known
    whether its note stands.
    """

    def __init__(self, store: BaseStore, lease: Lease, policy: Policy) -> None:
        """Read the journal of earlier attempts, all of it: raise StoreError for damage (S16)."""
        self._store = store
        self._lease = lease
        self.notes = Notes(store, lease, policy)
        #: How many results earlier attempts have noted, and which of these were not asked for yet.
        self.found = len(self.notes.results)
        self._unused = dict.fromkeys(self.notes.results)
        #: When the names were asked for that run, or whose result was given.
        self._asked: dict[str, int] = {}
        self._lock = threading.Lock()
        if self.found:
            logger.info(
                "Record %s: the work goes on after its noted steps, %d so far.",
                keys.short(lease.record_id),
                self.found,
            )

    # The four calls.

    def step(
        self, name: str, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """See `Lease.step`."""
        _check_name(name)
        _check_callable(name, work, f"step({name!r}, function, argument)")
        self._refuse_around(name, "step")
        with self._asking(name, "step") as is_noted:
            return self.notes.results[name] if is_noted else self._run(name, work, args, kwargs)

    async def astep(
        self, name: str, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """See `Lease.astep`: a cancellation waits for the note (T15)."""
        ended: list[bool] = []

        def step() -> Any:
            try:
                result = self.step(name, work, args, kwargs)
            except StopIteration as error:  # no future can be given it: it would wait for ever
                raise RuntimeError(f"The work of {name!r} raised StopIteration.") from error
            ended.append(True)
            return result

        try:
            return await finish(sync_to_async(step)())
        except asyncio.CancelledError:
            if ended:  # its result was not given, and may be asked for: after a time-out, say
                with self._lock:
                    self._asked.pop(name, None)
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
                return self.notes.results[name]
            key = self._lease.derive_key(name)
            if uncertain == "repeat":
                self.notes.refuse_full(name)
                return self._note_answer(name, call(key), uncertain)
            if name in self.notes.uncertain:
                if uncertain == "refuse":
                    raise self._refusal(name, key)
                try:
                    return self._note_answer(name, uncertain(key), uncertain)
                except NotDone as error:
                    if not self._is_mine(name, error):
                        raise
            self.notes.intend(name)
            try:
                answer = call(key)
            except NotDone as error:
                if self._is_mine(name, error):
                    self.notes.withdraw(name)
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
                return self.notes.results[name]
            key = self._lease.derive_key(name)
            if uncertain == "repeat":
                self.notes.refuse_full(name)
                answer = await _awaited(name, call(key))
                return await finish(sync_to_async(self._note_answer)(name, answer, uncertain))
            return await finish(self._call_once(name, key, call, uncertain))

    async def _call_once(
        self, name: str, key: str, call: Callable[[str], Awaitable[Any]], uncertain: Any
    ) -> Any:
        """Do what `external` does with a call that may not be repeated."""
        note_answer = sync_to_async(self._note_answer)
        if name in self.notes.uncertain:
            if uncertain == "refuse":
                raise self._refusal(name, key)
            try:
                return await note_answer(name, await _awaited(name, uncertain(key)), uncertain)
            except NotDone as error:
                if not self._is_mine(name, error):
                    raise
        await sync_to_async(self.notes.intend)(name)
        try:
            answer = await _awaited(name, call(key))
        except NotDone as error:
            if self._is_mine(name, error):
                await sync_to_async(self.notes.withdraw)(name)
            raise
        return await note_answer(name, answer, uncertain)

    # Calls that may not be repeated (T12).

    def _is_mine(self, name: str, error: NotDone) -> bool:
        """Whether this call says that it was not made, and not one inside of it."""
        return error._left < self._asked[name]

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

    # What is asked first, before anything runs.

    def _refuse_around(self, name: str, word: str) -> None:
        """
        Raise RuntimeError inside of another step or call of the attempt (T5).

        Raises TransactionOpen where a rollback could undo the work, and not its note (T6).
        """
        if self._store.using is not None:
            _refuse_loop()  # or else a call would be made that cannot be noted
        if [self] in _around.get():
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
            if self.notes.closed:
                raise RuntimeError(f"{word}({name!r}) comes too late: its attempt has ended.")
            if name in self._asked:
                raise RuntimeError(
                    f"{name!r} names another step of this attempt. In a loop, put the place into "
                    f'the name: f"rows-{{start}}".'
                )
            if name in self.notes.unknown:
                unknown = StoreError(f"Whether {name!r} was noted is not known; try again.")
                raise self.notes.marked(unknown)
            self._lease.check()
            self._asked[name] = next(_moments)
            self._unused.pop(name, None)
        around = [self]
        _around.set((*filter(None, _around.get()), around))
        try:
            yield name in self.notes.results
        except BaseException as error:
            leaves(error)
            with self._lock:
                del self._asked[name]  # what raises may be asked for again (T7)
            raise
        finally:
            around.clear()

    # The work and its note.

    def _run(
        self, name: str, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the work in a transaction whose last statement is its note."""
        store, lease = self._store, self._lease
        committed: list[bool] = []
        result, place = None, "store"
        try:
            self.notes.refuse_full(name)
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
                result, entry = self.notes.packed(name, returned)
                self.notes.write(name, entry)
                place = "commit"
        except BaseException as error:
            if committed:  # a hook raised: the step stands (T9)
                self.notes.keep(name, result)
                raise
            if place != "work":
                self.notes.marked(error)
            # Where the answer to a COMMIT is lost, or to the note of a store without one, this
            # attempt does not know what holds.
            is_refused = isinstance(error, (*_REFUSALS, LeaseLost)) or is_raised_by_server(error)
            is_undone = place != "commit" and store.supports_join
            if is_refused or is_undone or is_serialization_failure(error):
                self.notes.forget(name)
            raise
        self.notes.keep(name, result)
        return result

    def _note_answer(self, name: str, answer: Any, uncertain: Any) -> Any:
        """Note what a call has returned, by a write of its own."""
        try:
            result, entry = self.notes.packed(name, refuse_lazy(f"The call {name!r}", answer))
            self.notes.write_alone(name, entry, settles=name)
        except (ResultTooLarge, TypeError) as error:
            follows = "each retry will make it again"
            if uncertain != "repeat":
                follows = "counts as uncertain"
            raise type(error)(f"{error} The call was made, and {follows}.") from None
        self.notes.keep(name, result)
        return result

    # The end of the attempt.

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
        if self.notes.uncertain:
            logger.warning(
                "Record %s is completed, and nobody knows whether these calls were made: %s. Its "
                "work has swallowed what they raised, or does not ask for them any more.",
                record,
                _listed(sorted(self.notes.uncertain)),
            )


def leaves(error: BaseException) -> None:
    """Take note that an error leaves a call, or the work of a record: of both it says nothing."""
    if isinstance(error, NotDone):
        error._left = next(_moments)


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
    if not name.isprintable():  # it stands in logs, in lines of commands, and in forms
        raise ValueError(f"The name of a step has printable characters alone: {name!r} has others.")


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
