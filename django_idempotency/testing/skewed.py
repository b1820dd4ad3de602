"""A child process on a host whose clock is off: ``python -m … SECONDS CONTRACT``; see `children`.

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

__all__: list[str] = []


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, true_datetime)


def skew(seconds: float) -> None:
    """Shift what Python takes for now; a true datetime still counts as an instance."""
    duration = datetime.timedelta(seconds=seconds)

    class SkewedDatetime(true_datetime, metaclass=_Kind):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return true_datetime.now(tz) + duration

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.timezone.utc).replace(tzinfo=None)

    time.time = lambda: true_time() + seconds
    datetime.datetime = SkewedDatetime  # type: ignore[misc]


if __name__ == "__main__":
    skew(float(sys.argv[1]))

    from django_idempotency.testing import children

    children.main(sys.argv[2])
