"""What is done first in a child that this process forks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from weakref import WeakMethod

__all__ = ["in_each_child"]


def in_each_child(function: Callable[[], object]) -> None:
    """
    Have `function` called in each forked child; a method, for as long as its object lives.

    Windows forks none, and has no such hook.
    """
    known = WeakMethod(function) if inspect.ismethod(function) else lambda: function

    def call() -> None:
        if (called := known()) is not None:
            called()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
