"""
The tests' Django on a node whose clock is off by IDEMPOTENCY_TEST_CLOCK_SKEW seconds.

Python's clocks alone are shifted, before Django is imported; the monotonic one stays, as it does on
a node whose wall clock is wrong. Each answer says in ``X-Clock`` what this node takes for now.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterable
from datetime import datetime as true_datetime
from time import time as true_time
from typing import Any

SKEW = datetime.timedelta(seconds=float(os.environ["IDEMPOTENCY_TEST_CLOCK_SKEW"]))


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, true_datetime)


class SkewedDatetime(true_datetime, metaclass=_Kind):
    """What ``datetime`` is on this node; a true one counts as an instance."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return true_datetime.now(tz) + SKEW

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.timezone.utc).replace(tzinfo=None)


time.time = lambda: true_time() + SKEW.total_seconds()
datetime.datetime = SkewedDatetime  # type: ignore[misc]

from django.utils import timezone  # noqa: E402

from tests.services.wsgi import application as django_application  # noqa: E402


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve as Django does, and say what time it is here."""

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        return start_response(status, [*headers, ("X-Clock", timezone.now().isoformat())], *rest)

    return django_application(environ, start)
