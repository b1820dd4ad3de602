"""Options that several stores take."""

from __future__ import annotations

import math
from datetime import timedelta


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
