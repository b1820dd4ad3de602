"""Idempotency keys that are made of a call's arguments."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from django_idempotency.exceptions import InvalidKey

__all__ = ["key_maker"]

# What the escaped values of a template never have.
_SEPARATOR = re.compile(r"[^0-9A-Za-z%]")


def key_maker(
    key: str | Callable[..., str], signature: inspect.Signature
) -> Callable[[Mapping[str, Any]], str]:
    """Return what makes the key of a call from its bound arguments; TypeError if nothing can."""
    if callable(key):
        make = key
        return lambda arguments: make(**arguments)
    template = key if "{" in key else f"{{{key}}}"
    names: list[str] = []
    for literal, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if spec or conversion:
            raise TypeError(f"The key {key!r} has a format or conversion; name arguments only.")
        if names and not _SEPARATOR.search(literal):
            raise TypeError(f"The key {key!r} needs a sign between the arguments that it names.")
        names.append(name)
    for name in names:
        if name not in signature.parameters:
            raise TypeError(
                f"The key {key!r} names {name!r}, which is no argument of the function; it has "
                f"{', '.join(signature.parameters)}."
            )

    def make_key(arguments: Mapping[str, Any]) -> str:
        values = {
            name: _part(name, arguments[name], alone=template == f"{{{name}}}") for name in names
        }
        return template.format(**values)

    return make_key


def _has_text(value: Any) -> bool:
    """
    Whether ``str(value)`` names the value, and it alone.

    Containers and most objects have but their ``repr``, with its order or its address; a model's
    text is for people, and two rows may have the same.
    """
    if isinstance(value, (str, int, float)):
        return True
    bases = type(value).__mro__[:-1]  # without object
    return any("__str__" in vars(base) for base in bases) and not hasattr(value, "_meta")


def _part(name: str, value: Any, *, alone: bool) -> str:
    """Return an argument as a part of a key, escaped so that parts cannot run together."""
    if value is None:
        raise InvalidKey(f"The argument {name!r} is None, so it makes no idempotency key.")
    if not _has_text(value):
        raise InvalidKey(
            f"The argument {name!r} is a {type(value).__name__}, which has no text that stays the "
            f"same, so it makes no idempotency key; make one of it by a callable."
        )
    text = str(value)
    if alone:
        return text
    return "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"%{byte:02X}"
        for byte in text.encode(errors="surrogatepass")
    )
