"""Finds coroutine functions where the result is not awaited, before or right after the call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import Future
from inspect import Parameter, Signature
from io import IOBase
from typing import Any

#: What a result can be whose work is still to come. A file, which is an iterator, too, is none.
_LAZY = (AsyncIterator, Awaitable, Future, Iterator)


def coroutine_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with a coroutine function, whose result is not awaited; else None."""
    if not is_coroutine_function(value):
        return None
    return (
        f"{name} must not be a coroutine function, because its result is not awaited. Write it "
        f"with 'def', or give async_to_sync({getattr(value, '__name__', name)})."
    )


def signature_problem(
    name: str, value: Any, *takes: str, follow_wrapped: bool = True
) -> str | None:
    """Return what is wrong with a callable that cannot be called with `takes`; else None."""
    try:
        signature = inspect.signature(value, follow_wrapped=follow_wrapped)
    except (TypeError, ValueError):  # one that is written in C
        return None
    try:
        signature.bind(*takes)
    except TypeError:
        given = getattr(value, "__name__", type(value).__name__)
        own = [item.replace(annotation=Parameter.empty) for item in signature.parameters.values()]
        return f"{name} must take ({', '.join(takes)}), and {given}{Signature(own)} does not."
    return None


def is_coroutine_function(value: Any) -> bool:
    """Return whether `value`, or its method ``__call__``, is written with ``async def``."""
    forms = (value, type(value).__call__) if callable(value) else ()
    return any(inspect.iscoroutinefunction(form) for form in forms)


def name_of(function: Any) -> str:
    """Return module and qualified name of a function, or of a callable's class."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def refuse_lazy(name: str, result: Any) -> Any:
    """Return `result`; raise TypeError for what may be work that is still to come."""
    if not isinstance(result, _LAZY) or isinstance(result, IOBase):
        return result
    if inspect.iscoroutine(result):
        result.close()  # nobody is warned of what this error tells
    raise TypeError(
        f"{name} has returned a {type(result).__name__}, which is neither awaited nor iterated "
        f"over: its work may not have been done."
    )
