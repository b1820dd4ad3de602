"""What is done first in a child that this process forks."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["in_each_child"]


def in_each_child(function: Callable[[], object]) -> None:
    """Have `function` called in each forked child; Windows forks none, and has no such hook."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
