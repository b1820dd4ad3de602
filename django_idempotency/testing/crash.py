"""A crash at a named point of an attempt, to test what a retry does after it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, NoReturn
from unittest import mock

from django.http.response import HttpResponseBase

from django_idempotency import journal
from django_idempotency.conf import DEFAULT_ALIAS, store_for
from django_idempotency.context import running
from django_idempotency.engine.attempt import Attempt
from django_idempotency.engine.report import Report
from django_idempotency.exceptions import StoreError
from django_idempotency.http.guard import Guard
from django_idempotency.leases import Lease

__all__ = ["POINTS", "Crash", "crash_at"]

#: Where an attempt can be made to crash, in the order in which it passes them.
POINTS = (
    "before_claim",
    "after_claim",
    "in_work",
    "before_intent",
    "after_intent",
    "before_note",
    "after_note",
    "after_work",
    "before_complete",
    "after_complete",
    "before_commit",
    "after_commit",
    "after_rollback",
    "before_keep",
    "before_send",
    "in_renewal",
    "in_sweep",
)

_OPERATIONS = (
    "claim",
    "complete",
    "fail",
    "release",
    "note",
    "renew",
    "get",
    "browse",
    "resolve",
    "sweep",
)
_BEFORE = {
    "claim": ("before_claim",),
    "complete": ("after_work", "before_complete"),
    "fail": ("after_work",),
    "release": ("after_work",),
    "intent": ("before_intent",),
    "note": ("before_note",),
    "renew": ("in_renewal",),
    "sweep": ("in_sweep",),
}


class Crash(BaseException):
    """Simulates the death of the process; no code should catch it."""


class crash_at(AbstractContextManager["crash_at"]):
    """
    Let the attempt in this block die at `point`: ``with crash_at("after_claim"):``.

    At this point a `Crash` is raised. Transactions roll back as the database rolls back those of a
    dead process. From then on every call of the store raises, too: nothing is completed, failed or
    released, and no signal and no line of the log tells of an end. After the block the store works
    again. For ``"in_work"`` the work must call the object
    that the block returns. ``"in_renewal"`` is on the renewer's thread, so the attempt ends at its
    own next call of the store. With `exit_code` the process really ends, by ``os._exit``. Raises
    AssertionError if the point was not passed, and ValueError for an unknown point.
    """

    def __init__(
        self, point: str, *, store: str = DEFAULT_ALIAS, exit_code: int | None = None
    ) -> None:
        if point not in POINTS:
            raise ValueError(f"There is no point {point!r}; there are {', '.join(POINTS)}.")
        self.point = point
        #: Whether the point was passed.
        self.happened = False
        self._alias = store
        self._exit_code = exit_code

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Crash here, with any arguments: use it in place of a function that the work calls."""
        if self._exit_code is not None:
            os._exit(self._exit_code)
        self.happened = True
        raise Crash(self.point)

    def __enter__(self) -> crash_at:
        self._store: Any = store_for(self._alias)
        self._replaced: list[str] = []
        for name in _OPERATIONS:
            self._replace(name, functools.partial(self._call, name, getattr(self._store, name)))
        self._replace("atomic", functools.partial(self._atomic, self._store.atomic))
        respond = Guard.response

        def response(guarded: Guard, attempt: Attempt) -> HttpResponseBase:
            if guarded.plan.alias == self._alias:
                self._pass("before_send")
            return respond(guarded, attempt)

        ended = Report.ended

        def tell(report: Report, *args: Any) -> None:
            if not (self.happened and report._store is self._store):  # the dead tell nothing
                ended(report, *args)

        self._patched = ExitStack()
        self._patched.enter_context(mock.patch.object(Report, "ended", tell))
        self._patched.enter_context(mock.patch.object(Guard, "response", response))
        # The store sends a completion without the COMMIT: there are points between them.
        self._patched.enter_context(mock.patch.object(Attempt, "is_completing", False))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._patched.close()
        for name in self._replaced:
            delattr(self._store, name)
        if exc_type is None and not self.happened:
            raise AssertionError(f"The attempt did not pass the point {self.point!r}.")
        return exc_type is Crash

    def _replace(self, name: str, function: Callable[..., Any]) -> None:
        setattr(self._store, name, function)
        self._replaced.append(name)

    def _pass(self, *points: str) -> None:
        """Crash if this is the point, or if the crash has already happened."""
        if self.happened or self.point in points:
            self()

    def _begin(self, name: str) -> None:
        """Pass the points before an operation of the store."""
        points = _BEFORE.get(name, ())
        attempts = running()
        innermost = attempts[-1] if attempts else None
        if name == "complete" and isinstance(innermost, Attempt) and not innermost.ending.commits:
            points = (*points, "before_keep")
        try:
            self._pass(*points)
        except Crash:
            if name != "renew":
                raise
            # A Crash would end the renewer, which must still renew the leases of others.
            raise StoreError("The process was made to crash.") from None

    def _call(self, name: str, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "note" and journal.read(args[1]).uncertain:
            name = "intent"
        self._begin(name)
        done = operation(*args, **kwargs)
        self._passed(name, done)
        return done

    def _passed(self, name: str, done: Any) -> None:
        if name == "claim" and isinstance(done, Lease):
            self._pass("after_claim")
        elif name in ("complete", "intent", "note"):
            self._pass(f"after_{name}")

    @contextmanager
    def _atomic(
        self,
        atomic: Callable[..., AbstractContextManager[Any]],
        *,
        committed: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        self._pass()

        def note_commit() -> None:
            if committed is not None:
                committed()
            self._pass("after_commit")

        try:
            with atomic(committed=note_commit):
                yield
                self._pass("before_commit")
        except BaseException:
            if not self.happened:
                self._pass("after_rollback")
            raise
