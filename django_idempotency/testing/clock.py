"""A clock that only the test moves."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

__all__ = ["FakeClock"]


class FakeClock:
    """
    The time of a memory store: it stands still until the test moves it.

    ``MemoryStore(clock=FakeClock())``; thread-safe.
    """

    def __init__(self, start: datetime | None = None) -> None:
        """Begin at `start`, an aware time, or now; raise ValueError for a naive one."""
        if start is not None and start.utcoffset() is None:
            raise ValueError("A FakeClock starts at an aware time, with a time zone.")
        self._mutex = threading.Lock()
        self._now = (start or datetime.now(timezone.utc)).astimezone(timezone.utc)

    def __call__(self) -> datetime:
        """Return its time, in UTC."""
        with self._mutex:
            return self._now

    def advance(self, duration: timedelta | float) -> datetime:
        """Move it by a timedelta or seconds, back if negative, and return its time."""
        if not isinstance(duration, timedelta):
            duration = timedelta(seconds=duration)
        with self._mutex:
            self._now += duration
            return self._now

    def __repr__(self) -> str:
        return f"<FakeClock {self().isoformat()}>"
