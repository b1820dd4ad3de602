"""The names of cases that are named tuples."""

from __future__ import annotations

from typing import Any

__all__ = ["name_of"]


def name_of(case: Any) -> Any:
    """Return the id of a case in pytest: what it gives besides the defaults."""
    if not hasattr(case, "_asdict"):
        return None  # pytest finds one
    given, usual = case._asdict(), case._field_defaults
    changed = {field: it for field, it in given.items() if field not in usual or it != usual[field]}
    return " ".join(f"{field}={getattr(it, '__name__', it)}" for field, it in changed.items())
