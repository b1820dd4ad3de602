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
from typing import Any

SKEW = float(os.environ["IDEMPOTENCY_TEST_CLOCK_SKEW"])

_time, _datetime = time.time, datetime.datetime


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)


class SkewedDatetime(_datetime, metaclass=_Kind):
    """What ``datetime`` is on this node; a true one counts as an instance."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _datetime.now(tz) + datetime.timedelta(seconds=SKEW)

    @classmethod
    def utcnow(cls) -> Any:
        return _datetime.now(datetime.timezone.utc).replace(tzinfo=None) + datetime.timedelta(
            seconds=SKEW
        )


time.time = lambda: _time() + SKEW
datetime.datetime = SkewedDatetime  # type: ignore[misc]

from django.utils import timezone  # noqa: E402

from tests.services.wsgi import application as django_application  # noqa: E402


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve as Django does, and say what time it is here."""

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        return start_response(status, [*headers, ("X-Clock", timezone.now().isoformat())], *rest)

    return django_application(environ, start)
