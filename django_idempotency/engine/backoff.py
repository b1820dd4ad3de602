"""How a duplicate waits for the answer of the attempt that is in progress (R51)."""

from __future__ import annotations

import random
import time
from datetime import timedelta

__all__ = ["Backoff"]

#: Seconds before the second look, and the longest between two.
_FIRST = 0.02
_LONGEST = 0.5


class Backoff:
    """The pauses between two looks at the record, until the time to wait is over."""

    def __init__(self, wait: timedelta) -> None:
        self._until = time.monotonic() + wait.total_seconds()
        self._pause = _FIRST

    @property
    def fresh(self) -> bool:
        """Whether this is the first look."""
        return self._pause == _FIRST

    def next(self) -> float:
        """Return how many seconds to pause; 0 when the time to wait is over."""
        left = self._until - time.monotonic()
        if left <= 0:
            return 0
        # Waiters of one key must not look all at the same moment.
        pause = min(self._pause * random.uniform(0.75, 1.25), left)  # noqa: S311
        self._pause = min(self._pause * 1.5, _LONGEST)
        return pause
