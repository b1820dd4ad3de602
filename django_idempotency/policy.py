"""Policies: pure data that say how an operation is guarded, with a merge and a validation."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from django_idempotency import keys
from django_idempotency.callables import coroutine_problem, signature_problem
from django_idempotency.codecs import encryption
from django_idempotency.options import Secret, conceal, secrets_in

TRANSACTIONS = ("single", "joined", "separate", "steps")
UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
KEEP_PRESETS = ("default", "success", "stripe")
KEY_FORMATS = ("uuid", "uuid7")
_UUID_LENGTH = 36


_NO_TIME = timedelta(0)
_LONGEST = timedelta(days=36_525)
#: Seconds of the lease of an attempt that has no time left.
_SHORTEST = 0.001


class _Unset:
    """Stands for a missing value where None is a value."""

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


class _NotGiven(timedelta):
    """The ``wait`` of a policy that sets none: 0, except in forms, which have a default (R89)."""


_NO_WAIT = _NotGiven(0)


#: Stands for "not given": the value of the level below counts.
UNSET: Any = _Unset()


class UnknownField(TypeError):
    """A policy has no field of this name."""


@dataclass(frozen=True)
class Policy:
    """
    How one operation is guarded, whatever calls it.

    Durations are timedelta or seconds, and are kept as timedelta.
    """

    #: How long a lease lasts; then others may take over. Renewed while the process lives.
    lease: timedelta = timedelta(seconds=60)
    #: How long a finished record answers.
    retention: timedelta = timedelta(hours=24)
    #: How long a duplicate waits for the answer of the attempt in progress.
    wait: timedelta = _NO_WAIT
    #: Whether the lease of long work is renewed.
    renew: bool = True
    #: How long a lease is renewed at most; after that, `Lease.check` notices no take-over.
    max_duration: timedelta = timedelta(hours=1)
    #: "single", "joined", "separate", "steps" (not on an alias), or None: joined where the store
    #: can, separate elsewhere.
    transaction: str | None = None
    #: What a lapsed lease means: "take_over", or "refuse" until an operator decides.
    on_stale: str = "take_over"
    #: Bytes that a result may have.
    max_result_bytes: int = 1024 * 1024
    #: Bytes that the results of all steps of a record may have.
    max_steps_bytes: int = 64 * 1024
    #: ``() -> seconds`` that are left to this process; the lease ends with them, without renewal.
    deadline: Callable[[], float] | None = None
    #: Secrets that make fingerprints unguessable, newest first.
    fingerprint_secrets: tuple[Secret, ...] = field(default=(), repr=False)
    #: Keys under which stored results are encrypted, newest first; none: they are stored plain.
    encryption_keys: tuple[Secret, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in ("lease", "retention", "max_duration", "wait"):
            object.__setattr__(self, name, duration_of(getattr(self, name)))
        for name in ("fingerprint_secrets", "encryption_keys"):
            object.__setattr__(self, name, secrets_in(_several(getattr(self, name))))

    def wait_or(self, default: timedelta) -> timedelta:
        """Return ``wait``, or `default` if no level sets it; an explicit 0 counts as set."""
        return default if isinstance(self.wait, _NotGiven) else self.wait

    def attempt_lease(self) -> timedelta:
        """
        Return the duration of the lease of an attempt that starts now.

        Raises TypeError or ValueError if the deadline does not return a valid number of seconds.
        """
        if self.deadline is None:
            return self.lease
        given = self.deadline()
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise TypeError(f"deadline must return the seconds left, not {given!r}.")
        if not given <= _LONGEST.total_seconds():  # as is nan
            raise ValueError(f"deadline must return the seconds left, 100 years at most: {given}.")
        return timedelta(seconds=max(given, _SHORTEST))

    def problems(self) -> list[str]:
        """Return what is wrong with these values, one sentence each; empty if nothing is."""
        found = [
            f"{name} must be a timedelta or a number of seconds above 0, and at most 100 years."
            for name in ("lease", "retention", "max_duration")
            if not isinstance(getattr(self, name), timedelta)
            or not _NO_TIME < getattr(self, name) <= _LONGEST
        ]
        if not isinstance(self.wait, timedelta) or not _NO_TIME <= self.wait <= _LONGEST:
            found.append(
                "wait must be a timedelta or a number of seconds, 0 or more, and at most 100 years."
            )
        if self.transaction is not None and self.transaction not in TRANSACTIONS:
            found.append(_choice("transaction", self.transaction, TRANSACTIONS))
        if self.on_stale not in ("take_over", "refuse"):
            found.append(_choice("on_stale", self.on_stale, ("take_over", "refuse")))
        if self.on_stale == "refuse" and self.transaction == "single":
            found.append(
                'on_stale="refuse" cannot go with transaction="single", which has no lease.'
            )
        found.extend(_not_booleans(self, "renew"))
        if self.deadline is not None and not callable(self.deadline):
            found.append("deadline must be a callable that returns the seconds left.")
        for name in ("max_result_bytes", "max_steps_bytes"):
            if not _whole(getattr(self, name)) or getattr(self, name) < 0:
                found.append(f"{name} must be a whole number of bytes.")
        if not all(_is_secret(item) for item in self.fingerprint_secrets):
            found.append("fingerprint_secrets must be strings or bytes, none of them empty.")
        found.extend(encryption.problems_of(self.encryption_keys))
        return found


@dataclass(frozen=True)
class HTTPPolicy:
    """How requests are guarded: what makes the key, the scope, the fingerprint and the answer."""

    header: str = "Idempotency-Key"
    required: bool = False
    #: Methods that are guarded; None for each unsafe one, and for POST and PATCH in the middleware.
    methods: frozenset[str] | None = None
    #: The field of a form that carries the key if no header field does.
    form_field: str = "idempotency_key"
    #: ``(request) -> str`` or its dotted path; replaces the authenticated user.
    scope: Callable[[Any], str] | str | None = None
    #: Whether the endpoint is part of the scope, so that one key may be used on two of them.
    scope_endpoint: bool = False
    #: "json", "raw", ``(request) -> bytes`` or its dotted path, or None: bodies are not compared.
    fingerprint: Callable[[Any], bytes] | str | None = "json"
    #: Paths of JSON members that do not count, such as ``"client.sent_at"``.
    fingerprint_exclude: tuple[str, ...] = ()
    #: Names of header fields that are part of the fingerprint.
    fingerprint_headers: tuple[str, ...] = ()
    #: "uuid", "uuid7", or ``(key) -> None`` that raises InvalidKey.
    key_validator: Callable[[str], None] | str | None = None
    key_min_length: int = 1
    key_max_length: int = keys.MAX_LENGTH
    #: Refuse keys that are not structured-field Strings.
    strict_header: bool = False
    #: "default", "success", "stripe", or ``(response, exception) -> "keep" | "release" | "fail"``.
    keep: Callable[[Any, BaseException | None], str] | str = "default"
    #: The header field that marks a replay; None for no mark.
    replay_header: str | None = "Idempotency-Replayed"
    #: Names of header fields that are kept if named only, or, with a minus, that are dropped.
    replay_headers: tuple[str, ...] = ()
    #: Whether the answer names the key.
    echo_key: bool = False
    in_progress_status: int = 409
    mismatch_status: int = 422
    #: The URL of the pages about problems; each problem's code is appended.
    documentation_url: str = "https://django-idempotency.readthedocs.io/en/latest/problems/"
    #: ``(request, problem) -> HttpResponse``
    error_renderer: Callable[[Any, dict[str, Any]], Any] | str | None = None
    #: Run unguarded when the store cannot be reached at the claim, instead of a 503.
    fail_open: bool = False
    #: ``(request, record) -> bool``: whether this caller may see the stored answer.
    replay_check: Callable[[Any, Any], bool] | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.methods, (set, list, tuple, frozenset)):
            object.__setattr__(self, "methods", frozenset(str(m).upper() for m in self.methods))
        for name in ("replay_headers", "fingerprint_headers", "fingerprint_exclude"):
            object.__setattr__(self, name, _several(getattr(self, name)))

    def new_key(self) -> str:
        """
        Return a new key within the bounds, and a UUIDv7 where that is asked for.

        What a callable of the project's asks for, it cannot know.
        """
        return keys.new_key(
            time_ordered=self.key_validator == "uuid7",
            min_length=self.key_min_length,
            max_length=self.key_max_length,
        )

    def problems(self) -> list[str]:
        """Return what is wrong with these values, one sentence each; empty if nothing is."""
        found = []
        if self.methods is not None and not (
            isinstance(self.methods, frozenset) and self.methods <= UNSAFE_METHODS
        ):
            found.append(f"methods must be a set of {', '.join(sorted(UNSAFE_METHODS))}.")
        if self.methods is not None:
            found.extend(empty_methods(self.methods))
        if not _is_header(self.header):
            found.append(f"header must be the name of a header field, not {self.header!r}.")
        if not _is_text(self.form_field):
            found.append("form_field must be the name of a field.")
        found.extend(
            _not_booleans(
                self, "required", "scope_endpoint", "strict_header", "echo_key", "fail_open"
            )
        )
        if not callable(self.keep) and self.keep not in KEEP_PRESETS:
            found.append(_choice("keep", self.keep, KEEP_PRESETS))
        if not callable(self.key_validator) and self.key_validator not in (None, *KEY_FORMATS):
            found.append(_choice("key_validator", self.key_validator, KEY_FORMATS))
        mark = self.replay_header
        if mark is not None and not (_is_header(mark) and not _ANSWERS_OWN.fullmatch(mark)):
            found.append(
                f"replay_header must be the name of a header field of its own, or None, not "
                f"{mark!r}."
            )
        elif mark is not None and mark.lower() == str(self.header).lower():
            found.append(f"replay_header and header must be two header fields, not both {mark!r}.")
        for name in self.replay_headers:
            if not isinstance(name, str) or not _is_header(name.removeprefix("-")):
                found.append(
                    f"replay_headers must be names of header fields, with a minus before those to "
                    f"drop, not {name!r}."
                )
        if wrong := [name for name in self.fingerprint_headers if not _is_header(name)]:
            found.append(f"fingerprint_headers must be names of header fields, not {wrong[0]!r}.")
        if not all(isinstance(path, str) for path in self.fingerprint_exclude):
            found.append("fingerprint_exclude must be paths of JSON members.")
        if not _is_text(self.documentation_url) or _NO_URL.search(self.documentation_url):
            found.append("documentation_url must be an URL.")
        if not _whole(self.key_min_length) or not _whole(self.key_max_length):
            found.append("key_min_length and key_max_length must be whole numbers.")
        elif not 1 <= self.key_min_length <= self.key_max_length <= keys.MAX_LENGTH:
            found.append(
                f"key_min_length and key_max_length must lie between 1 and {keys.MAX_LENGTH}, the "
                f"first not above the second."
            )
        elif self.key_validator in KEY_FORMATS and not (
            self.key_min_length <= _UUID_LENGTH <= self.key_max_length
        ):
            found.append(
                f"key_validator {self.key_validator!r} needs keys of {_UUID_LENGTH} characters, "
                f"which key_min_length and key_max_length do not allow."
            )
        for name in ("in_progress_status", "mismatch_status"):
            if not _whole(getattr(self, name)) or not 400 <= getattr(self, name) <= 499:
                found.append(f"{name} must be a status between 400 and 499.")
        for name in ("scope", "fingerprint", "error_renderer", "replay_check"):
            value = getattr(self, name)
            if value is not None and not callable(value) and not isinstance(value, str):
                found.append(f"{name} must be a callable or its dotted path.")
        for name in _CALLABLES:
            problem = coroutine_problem(name, getattr(self, name))
            found.extend([] if problem is None else [problem])
        return found


#: The fields of the HTTP policy that may hold a callable.
_CALLABLES = ("scope", "fingerprint", "key_validator", "keep", "error_renderer", "replay_check")

#: A token (RFC 9110, section 5.6.2); no name of ``request.META``, which no request would have.
_HEADER_NAME = re.compile(r"(?!HTTP_)[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Fields of an answer that mean something else than that it is a replay.
_ANSWERS_OWN = re.compile(
    "cache-control|content-.*|date|idempotency-(expires|stored)|link|location|set-cookie|vary", re.I
)
#: What would end a URL in a header field.
_NO_URL = re.compile(r"[\x00-\x20<>\x7f-\U0010ffff]")


#: The arguments of the callables of both policies.
CALLED_WITH = {
    "deadline": (),
    "scope": ("request",),
    "fingerprint": ("request",),
    "key_validator": ("key",),
    "keep": ("response", "exception"),
    "replay_check": ("request", "record"),
    "error_renderer": ("request", "problem"),
}


def empty_methods(methods: Any) -> list[str]:
    """
    Return what is wrong with a set of no methods: it may mean that all are to be guarded, or none.

    Guards raise ValueError with it where they are declared.
    """
    if not isinstance(methods, (set, list, tuple, frozenset)) or methods:
        return []
    return [
        f"methods must not be empty. Name some of {', '.join(sorted(UNSAFE_METHODS))}, or write "
        f"None for the default. To guard no method, leave the guard out."
    ]


def check_signatures(given: Mapping[str, Any]) -> None:
    """
    Raise TypeError for callables among the fields `given` that do not take what they will get.

    Called where the callables are declared, because `HTTPPolicy.problems` runs on each request.
    """
    found = [
        signature_problem(name, given[name], *takes)
        for name, takes in CALLED_WITH.items()
        if callable(given.get(name))
    ]
    if any(found):
        raise TypeError(" ".join(filter(None, found)))


AnyPolicy = TypeVar("AnyPolicy", Policy, HTTPPolicy)


def merge(
    policy: AnyPolicy, changes: Mapping[str, Any], *, beside: Iterable[str] = ()
) -> AnyPolicy:
    """
    Return `policy` with `changes`, in which UNSET means "unchanged".

    Raises UnknownField for an unknown name, with the nearest known one, and ValueError for invalid
    values. `beside` are other names that the caller accepts, which count as known for the
    suggestion.
    """
    conceal(changes)
    given = {name: value for name, value in changes.items() if value is not UNSET}
    if not given:
        return policy
    known: list[str] = [item.name for item in dataclasses.fields(policy)]
    for name in given:
        if name not in known:
            hint = suggestion(name, (*known, *beside))
            if isinstance(policy, Policy) and name in HTTPPolicy.__dataclass_fields__:
                hint = " It is a field of requests: give it to a view, or to 'HTTP' of the alias."
            raise UnknownField(f"{name!r} is not a field of {type(policy).__name__}.{hint}")
    merged = dataclasses.replace(policy, **given)
    if problems := merged.problems():
        raise ValueError(" ".join(problems))
    return merged


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest of the known names, or an empty string."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    nearest = difflib.get_close_matches(name.casefold(), list(by_folded), n=1)
    return f" Did you mean {by_folded[nearest[0]]!r}?" if nearest else ""


def duration_of(value: Any) -> Any:
    """Return a number of seconds as a timedelta, and anything else as it is."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError, ValueError):  # problems() reports an invalid duration
            return timedelta(seconds=value)
    return value


def _several(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return (value,)  # problems() reports what is no name, path or secret
    return tuple(value)


def _not_booleans(policy: Any, *names: str) -> list[str]:
    return [
        f"{name} must be True or False."
        for name in names
        if not isinstance(getattr(policy, name), bool)
    ]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_header(value: Any) -> bool:
    return isinstance(value, str) and _HEADER_NAME.fullmatch(value) is not None


def _is_secret(value: Any) -> bool:
    given = value.value if isinstance(value, Secret) else None
    return isinstance(given, (str, bytes)) and len(given) > 0


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _choice(name: str, value: Any, choices: Iterable[str]) -> str:
    nearest = suggestion(str(value), choices)
    return f"{name} must be one of {', '.join(choices)}, not {value!r}.{nearest}"
