"""Fixtures of the views and forms of tests/unit, on PostgreSQL."""

from __future__ import annotations

from tests.unit.forms.conftest import looked_twice, visitor
from tests.unit.views.conftest import (
    collected,
    in_loop,
    in_progress,
    looks,
    mode,
    policy,
    project,
    runs,
    the_gate,
)

__all__ = ["collected", "in_loop", "in_progress", "looked_twice", "looks", "mode"]
__all__ += ["policy", "project", "runs", "the_gate", "visitor"]
