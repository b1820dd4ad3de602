"""The attempts of which the running code is part, in this thread or coroutine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from uuid import UUID

from django_idempotency.claims import ClaimRequest
from django_idempotency.leases import Lease


class Running:
    """A running attempt, as the code inside it and the stores see it."""

    #: What it asks of the store.
    request: ClaimRequest
    #: The lease that the attempt has won; None before that, and for a replay.
    held: Lease | None = None
    #: The work may stand still while other coroutines use its thread.
    of_coroutine = False

    @property
    def is_completing(self) -> bool:
        """Whether the next completion is the attempt's own, and its last statement."""
        return False

    @property
    def record_id(self) -> UUID:
        """The id of the record that it is about."""
        return self.request.record_id

    def push(self) -> None:
        """Make this attempt the innermost one, and its lease `current()`."""
        _running.set((*_running.get(), self))

    def pop(self) -> None:
        """End what `push` began, in whatever order blocks that were entered by hand are left."""
        _running.set(tuple([other for other in _running.get() if other is not self]))

    def hook(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return an on_commit hook of the work's as one that runs as part of this attempt."""

        @functools.wraps(function)  # Django names a robust hook that raises by its __qualname__
        def run() -> None:
            self.push()
            try:
                function()
            finally:
                self.pop()

        return run


_running: ContextVar[tuple[Running, ...]] = ContextVar("idempotency_attempts", default=())


#: Returns the attempts that the code which asks is part of, the innermost last.
running: Callable[[], tuple[Running, ...]] = _running.get


def current() -> Lease | None:
    """Return the lease of the work that calls this, or None outside of any work."""
    return next((x.held for x in reversed(_running.get()) if x.held is not None), None)
