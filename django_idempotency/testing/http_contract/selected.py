"""Which rules a contract runs: those that its API has what they need for."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from django_idempotency.testing.http_contract.declared import Declared, is_declared

_RULE = re.compile(r"R[1-9][0-9]?(?=_)")
_NUMBER = re.compile(r"R([1-9][0-9]?)")


class Selected(Declared):
    """
    Takes the rules out of a subclass that it does not declare enough for.

    They are no tests of that class, and not skipped ones either.
    """

    _missing: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Leave out the rules that need what this class does not declare."""
        super().__init_subclass__(**kwargs)
        cls._missing = {}
        known = sorted(_names(cls), key=_number)  # the order in which they are run
        if unknown := set(cls.leaves_out) - {*known, *(rule for n in known for rule in _rules(n))}:
            raise TypeError(f"{cls.__name__} leaves out what is no rule: {', '.join(unknown)}.")
        for name in known:
            test = _test_of(cls, name)
            reason = _reason(cls, name, test)
            if reason:
                cls._missing[name] = reason
                test = None
            setattr(cls, name, test)  # again: a class in between may have left it out

    @classmethod
    def rules(cls) -> dict[str, list[str]]:
        """Return the names of the tests that are run, by rule."""
        found: dict[str, list[str]] = {}
        for name in _names(cls):
            if getattr(cls, name) is not None:
                for rule in _rules(name):
                    found.setdefault(rule, []).append(name)
        return {rule: found[rule] for rule in sorted(found, key=_number)}

    @classmethod
    def left_out(cls) -> dict[str, str]:
        """Return why the tests that are not run are not, by name."""
        return dict(cls._missing)

    @classmethod
    def summary(cls) -> str:
        """Return what is run and what is left out, for people."""
        rules, left_out = cls.rules(), cls.left_out()
        lines = [f"{cls.__name__} runs {len(rules)} rules: {', '.join(rules)}"]
        if left_out:
            lines.append(f"and leaves out {len(left_out)} tests:")
            lines += [f"  {name}: {reason}" for name, reason in left_out.items()]
        return "\n".join(lines)


def _names(cls: type[Selected]) -> list[str]:
    """Return the names of all tests of rules, left out or not, as they were defined."""
    return list(
        dict.fromkeys(
            name
            for owner in reversed(cls.__mro__)
            for name in vars(owner)
            if name.startswith("test_") and _RULE.search(name)
        )
    )


def _number(name: str) -> int:
    """Return the number of a rule, or of the first rule of a test."""
    return int(_NUMBER.findall(name)[0])


def _rules(name: str) -> list[str]:
    return _RULE.findall(name)


def _test_of(cls: type[Selected], name: str) -> Any:
    """Return the test that stands nearest, past what classes in between have left out."""
    for owner in cls.__mro__:
        if name in vars(owner) and name not in vars(owner).get("_missing", {}):
            return vars(owner)[name]
    raise AssertionError(name)


def _reason(cls: type[Selected], name: str, test: Any) -> str:
    """Return why a test is not run; empty if it is."""
    if test is None:
        return "is None"
    for given in (name, *_rules(name)):
        if given in cls.leaves_out:
            return cls.leaves_out[given]
    missing = [need for need in getattr(test, "_needs", ()) if not is_declared(cls, need)]
    return f"needs {', '.join(missing)}" if missing else ""
