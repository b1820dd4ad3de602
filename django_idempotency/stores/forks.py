"""What is done first in a child that this process forks."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable
from typing import Any
from weakref import ref

_functions: list[Callable[[], object]] = []
#: Methods beside their objects, which they do not keep.
_methods: dict[int, tuple[ref[Any], Callable[[Any], object]]] = {}
_numbers = itertools.count()


def in_each_child(function: Callable[[], object]) -> None:
    """
    Have `function` called in each forked child; a method, for as long as its object lives.

    Windows forks none, and has no such hook.
    """
    if not inspect.ismethod(function):
        _functions.append(function)
        return
    for number, (known, _method) in [*_methods.items()]:
        if known() is None:
            _methods.pop(number, None)
    _methods[next(_numbers)] = ref(function.__self__), function.__func__


def _call_all() -> None:
    for function in _functions:
        function()
    for known, method in [*_methods.values()]:
        if (owner := known()) is not None:
            method(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_call_all)
