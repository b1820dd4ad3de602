"""Let a module that is imported already be what a changed source says, in this process."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["NotExchanged", "exchange", "functions"]


class NotExchanged(Exception):
    """Only a new process has the change."""


def functions() -> list[FunctionType]:
    """Return all functions that there are; none after gc.freeze()."""
    return [function for function in gc.get_objects() if type(function) is FunctionType]


def exchange(file: str, old: str, new: str, among: Iterable[FunctionType]) -> None:
    """
    Let the functions, and the values, of the module in `file` be those of `new`.

    A function gets new code, so that whoever has imported, decorated or bound it has the change.
    What else the body of the module or of a class says is said again, and put in the place of what
    had been said: texts of statements, which nothing has been made of yet.
    """
    module = next(
        (m for m in list(sys.modules.values()) if m.__dict__.get("__file__") == file), None
    )
    if module is None:
        return  # it will be imported from the file
    codes = dict(_pairs(*(compile(text, file, "exec", dont_inherit=True) for text in (old, new))))
    for function in among:
        if function.__code__.co_filename == file and function.__code__ in codes:
            try:
                function.__code__ = codes[function.__code__]
            except ValueError as error:  # it is a closure, of other variables
                raise NotExchanged(str(error)) from None
    if any(_is_body(code) and _said(code) != _said(codes[code]) for code in codes):
        _say_again(module, new, file)


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    yield old, new
    inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)]
    if [code.co_name for code in inner[0]] == [code.co_name for code in inner[1]]:
        for pair in zip(*inner, strict=True):
            yield from _pairs(*pair)


def _is_body(code: CodeType) -> bool:
    """Whether it is the code of a module or of a class."""
    return not code.co_flags & inspect.CO_OPTIMIZED


def _said(code: CodeType) -> tuple[bytes, object, str]:
    constants = [value for value in code.co_consts if not isinstance(value, CodeType)]
    return code.co_code, code.co_names, repr(constants)


def _say_again(module: ModuleType, text: str, file: str) -> None:
    again = ModuleType(module.__name__)
    again.__dict__.update(__file__=file, __package__=module.__package__)
    exec(compile(text, file, "exec", dont_inherit=True), again.__dict__)
    said = [(name, value) for name, value in vars(again).items() if not name.startswith("__")]
    if not sum(_put(vars(module), name, value) for name, value in said):
        raise NotExchanged(f"{module.__name__} has what cannot be put in the place of the old")


def _put(names: Any, name: str, value: object) -> bool:
    """Put a value of the module in the place of the old one, wherever that is; False if equal."""
    old = names.get(name)
    if isinstance(value, type) and isinstance(old, type):
        if value.__module__ != old.__module__ or value is old:
            return False
        changed = [n for n, v in vars(value).items() if _is_plain(v) and v != vars(old).get(n)]
        for attribute in changed:
            setattr(old, attribute, vars(value)[attribute])
        return bool(changed)
    if _is_plain(value):
        if value == old:
            return False
        package = names["__name__"].partition(".")[0]
        for other in [m for n, m in sys.modules.items() if n.partition(".")[0] == package]:
            for at in [n for n, v in vars(other).items() if v is old]:
                setattr(other, at, value)
        return True
    fields = getattr(value, "__dict__", {})
    is_own = type(value).__module__ == names["__name__"] and all(map(_is_plain, fields.values()))
    if is_own and fields != vars(old):
        vars(old).update(fields)
        return True
    return False


def _is_plain(value: object) -> bool:
    """Whether it is a text, a number, or a collection of such."""
    if isinstance(value, (tuple, frozenset, list)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return isinstance(value, (str, bytes, int, float, type(None)))
