"""Clocks that are off: ``python -m … CONTRACT`` is a child process with them; see `children`.

Python's clocks alone are shifted, before anything else is imported. The monotonic one stays, as it
does on a host whose wall clock is wrong.
"""

from __future__ import annotations

import datetime
import sys
import time
from datetime import datetime as true_datetime
from time import time as true_time
from typing import Any

_ahead = datetime.timedelta()


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, true_datetime)


class _SkewedDatetime(true_datetime, metaclass=_Kind):
    """What ``datetime`` is on this host; a true one counts as an instance."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return true_datetime.now(tz) + _ahead

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.timezone.utc).replace(tzinfo=None)


def skew(seconds: float) -> None:
    """Let Python's clocks be `seconds` ahead."""
    global _ahead
    _ahead = datetime.timedelta(seconds=seconds)
    time.time = lambda: true_time() + seconds
    datetime.datetime = _SkewedDatetime  # type: ignore[misc]


if __name__ == "__main__":
    skew(0)

    from django_idempotency.testing import children

    children.main(sys.argv[1], skew)
