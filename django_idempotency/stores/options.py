"""Options that several stores take."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any


def seconds_of(name: str, value: float | timedelta, *, may_be_zero: bool = False) -> float:
    """Return the seconds of an option; raise TypeError and ValueError, which say what it takes."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds or a timedelta, not {value!r}.")
    if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        least = "0 seconds or more" if may_be_zero else "more than 0 seconds"
        raise ValueError(f"{name} must be {least}, and finite.")
    return float(value)


def text_of(name: str, value: Any, *, may_be_empty: bool = False) -> str:
    """Return an option that is text; raise TypeError, which says so."""
    if not isinstance(value, str) or not (value or may_be_empty):
        raise TypeError(f"{name} is a {'' if may_be_empty else 'non-empty '}str, not {value!r}.")
    return value


def flag_of(name: str, value: Any) -> bool:
    """Return an option that is True or False; raise TypeError, which says so."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}.")
    return value


def clock_of(value: Any) -> Callable[[], datetime]:
    """Return an option that gives the time when it is called; raise TypeError, which says so."""
    if not callable(value):
        raise TypeError(f"clock is a callable that returns the time, not {value!r}.")
    return value  # type: ignore[no-any-return]
