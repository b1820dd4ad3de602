"""The idempotency key of a call, and the payload to compare, made from its arguments."""

from __future__ import annotations

import inspect
import re
import string
import sys
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from inspect import BoundArguments, Parameter, Signature
from typing import Any, TypeVar

from django_idempotency.callables import coroutine_problem
from django_idempotency.exceptions import InvalidKey
from django_idempotency.policy import UNSET

R = TypeVar("R")

# What is escaped in values, if the template has it around them; no escape has any of it.
_SIGN = re.compile(r"[^0-9A-Za-z%]")
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def bind(
    signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, own_first: bool
) -> BoundArguments:
    """
    Return the arguments of a call, with their defaults; raise TypeError for what does not fit.

    With `own_first` the first of them is the task itself, or its context, and is left out.
    """
    if own_first:
        signature = without_first(signature)
        args = args[1:]
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


def without_first(signature: Signature) -> Signature:
    """Return `signature` without its first argument; as it is, if that is ``*args`` or none."""
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind in _VARIADIC:
        return signature
    return signature.replace(parameters=parameters[1:])


def is_context(value: Any) -> bool:
    """Return whether `value` is what ``@task(takes_context=True)`` of Django gives to a task."""
    # Where nothing has imported it, there is none. The second one is for Django before 6.0.
    modules = [sys.modules.get(f"{name}.base") for name in ("django.tasks", "django_tasks")]
    return any(module is not None and isinstance(value, module.TaskContext) for module in modules)


def _compared(bound: BoundArguments) -> dict[str, Any]:
    """
    Return what is compared between calls of one key: the arguments that are not their defaults.

    A message may be older than an argument that the code has gained since, with a default.
    """
    parameters = bound.signature.parameters
    return {
        name: value
        for name, value in bound.arguments.items()
        if not _is_default(value, parameters[name])
    }


def payload_maker(
    key: Any, payload: Callable[..., Any] | None, signature: Signature, *others: Signature
) -> Callable[[BoundArguments], Any]:
    """
    Return the function that makes the payload to compare from a call's arguments.

    `payload` is a callable over the arguments, None to compare nothing, or UNSET: then the key
    decides, as those of `contrib.events` do, or the arguments are compared. Raises TypeError for
    other values.
    """
    if payload is UNSET:
        payload = getattr(key, "payload", UNSET)
    if payload is UNSET:
        return _compared
    if payload is None:
        return lambda bound: None
    if not callable(payload):
        raise TypeError("payload must be a callable over the arguments, or None.")
    return _over("payload", payload, signature, *others)


def _over(
    what: str, function: Callable[..., R], *signatures: Signature
) -> Callable[[BoundArguments], R]:
    """
    Return what calls `function` with the arguments of a call, as the guarded function gets them.

    TypeError, which says that it is about `what`, if it can take none of the `signatures`, as far
    as that can be told without a call.
    """
    if problem := coroutine_problem(what, function):
        raise TypeError(problem)
    try:
        taken = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C do not say what they take
        taken = None
    if taken is not None and not any(_may_take(taken, signature) for signature in signatures):
        raise TypeError(
            f"{what} must be a callable over the arguments {', '.join(signatures[0].parameters)}, "
            f"in this order; it takes {taken}."
        )
    return lambda bound: function(*bound.args, **bound.kwargs)


def key_maker(
    key: str | Callable[..., str], signature: Signature, *others: Signature
) -> Callable[[BoundArguments], str]:
    """
    Return what makes the key of a call from its bound arguments; TypeError if nothing can.

    `others` are signatures that the calls may have as well, without an argument of the first one.
    """
    if callable(key):
        return _over("key", key, signature, *others)
    if not isinstance(key, str) or not key:
        raise TypeError(
            f"key must be an argument's name, a template or a callable over the arguments, not "
            f"{key!r}."
        )
    template = key if "{" in key else f"{{{key}}}"
    names: list[str] = []
    signs: set[str] = set()
    for literal, name, spec, conversion in string.Formatter().parse(template):
        signs.update(_SIGN.findall(literal))
        if name is None:
            continue
        if spec or conversion:
            raise TypeError(f"The key {key!r} has a format or conversion; name arguments only.")
        if names and not _SIGN.search(literal):
            raise TypeError(f"The key {key!r} needs a separator between its arguments.")
        names.append(name)
    for name in names:
        if name not in signature.parameters:
            raise TypeError(
                f"The key {key!r} names {name!r}, which is not an argument of the function; it has "
                f"{', '.join(signature.parameters)}."
            )
    alone = template == f"{{{names[0]}}}" if names else False

    def make_key(bound: BoundArguments) -> str:
        texts = {name: _text(name, bound.arguments[name]) for name in names}
        if alone:
            return texts[names[0]]
        return template.format(**{name: escaped(text, signs) for name, text in texts.items()})

    return make_key


def escaped(text: str, signs: Collection[str]) -> str:
    """
    Return `text` without `signs`, as a part of a key that cannot run together with its neighbours.

    ``%`` is escaped as well, so that no two texts become one, and what no key may have: control
    characters and surrogates.
    """
    return "".join(
        "".join(f"%{byte:02X}" for byte in sign.encode(errors="surrogatepass"))
        if sign == "%" or sign in signs or unicodedata.category(sign) in ("Cc", "Cs")
        else sign
        for sign in text
    )


def _is_default(value: Any, parameter: Parameter) -> bool:
    if parameter.kind in _VARIADIC:
        return len(value) == 0
    return type(value) is type(parameter.default) and bool(value == parameter.default)


# Callables over the arguments.


def _may_take(taken: Signature, signature: Signature) -> bool:
    """
    Whether a function takes some call of another signature.

    The call has each argument's own name for its value, which shows the parameter that gets it:
    ``lambda amount, order`` must not get (order, amount). Of any number of arguments there may be
    none.
    """
    names = {
        name: name for name, item in signature.parameters.items() if item.kind not in _VARIADIC
    }
    call = BoundArguments(signature, OrderedDict(names))
    whole = len(names) == len(signature.parameters)
    try:
        bound = (taken.bind if whole else taken.bind_partial)(*call.args, **call.kwargs)
    except TypeError:
        return False
    return all(
        bound.arguments.get(name) == name
        for name, item in taken.parameters.items()
        if name in names and item.kind not in _VARIADIC
    )


# Values as text.


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


def _text(name: str, value: Any) -> str:
    """Return an argument as text; raise InvalidKey if it has none that names it."""
    if value is None:
        raise InvalidKey(f"The argument {name!r} is None, so it makes no idempotency key.")
    if not _has_text(value):
        raise InvalidKey(
            f"The argument {name!r} is a {type(value).__name__}, which has no text that stays the "
            f"same, so it makes no idempotency key; make one of it by a callable."
        )
    return str(value)
