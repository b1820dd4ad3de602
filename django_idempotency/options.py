"""The fields of the policies as keyword arguments, and the secrets among them, which are hidden."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

__all__ = [
    "SECRETS",
    "HTTPPolicyOptions",
    "PolicyOptions",
    "Secret",
    "conceal",
    "concealed",
    "secrets_in",
]

#: The fields that are secrets.
SECRETS = ("encryption_keys", "fingerprint_secrets")
#: Names that may give a secret, misspelt ones, too.
_SECRET = re.compile("crypt|secret", re.IGNORECASE)
#: What a secret, or several, may be given as.
_GIVEN = (str, bytes, bytearray, list, tuple, set, frozenset)


class Secret:
    """
    A secret of the project, which no report of an error shows.

    Reports show the variables of each frame. So `value` is given to functions that do not raise,
    and is bound to no name.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)


def secrets_in(given: Any) -> Any:
    """Return one secret or several as a tuple of them; what can be none as it is."""
    if not isinstance(given, _GIVEN):
        return given
    several = (given,) if isinstance(given, (str, bytes, bytearray)) else given
    return tuple(item if isinstance(item, Secret) else Secret(item) for item in several)


def conceal(given: Any) -> None:
    """Hide the secrets among keyword arguments, in place: the frames of callers have them, too."""
    for name in given:
        if _SECRET.search(name):
            given[name] = secrets_in(given[name])


def concealed(setting: Any) -> Any:
    """Return a setting with its secrets hidden, those at a wrong place, too."""
    if not isinstance(setting, Mapping):
        return setting
    return {name: _concealed(name, value) for name, value in setting.items()}


def _concealed(name: Any, value: Any) -> Any:
    if name == "OPTIONS":  # a store's own
        return value
    is_secret = isinstance(name, str) and _SECRET.search(name)
    return secrets_in(value) if is_secret else concealed(value)


#: A number means seconds.
Duration = timedelta | float
#: Not a str, whose letters would be the names.
Names = list[str] | tuple[str, ...] | set[str] | frozenset[str]
Secrets = str | bytes | Sequence[str | bytes]
Transaction = Literal["single", "joined", "separate", "steps"]
OnStale = Literal["take_over", "refuse"]
Keep = Literal["default", "success", "stripe"] | Callable[[Any, Any], str]
KeyValidator = Literal["uuid", "uuid7"] | Callable[[str], None]


class PolicyOptions(TypedDict, total=False):
    """The fields of `Policy`, as a call, a task or a view gives them."""

    lease: Duration
    retention: Duration
    wait: Duration
    renew: bool
    max_duration: Duration
    transaction: Transaction | None
    on_stale: OnStale
    max_result_bytes: int
    max_steps_bytes: int
    deadline: Callable[[], float] | None
    fingerprint_secrets: Secrets
    encryption_keys: Secrets


class HTTPPolicyOptions(PolicyOptions, total=False):
    """The fields of `Policy` and of `HTTPPolicy`, as a view gives them."""

    header: str
    required: bool
    methods: Names | None
    form_field: str
    scope: Callable[[Any], str] | str | None
    scope_endpoint: bool
    fingerprint: Callable[[Any], bytes] | str | None
    fingerprint_exclude: str | Sequence[str]
    fingerprint_headers: str | Sequence[str]
    key_validator: KeyValidator | None
    key_min_length: int
    key_max_length: int
    strict_header: bool
    keep: Keep
    replay_header: str | None
    replay_headers: str | Sequence[str]
    echo_key: bool
    in_progress_status: int
    mismatch_status: int
    documentation_url: str
    error_renderer: Callable[[Any, dict[str, Any]], Any] | str | None
    fail_open: bool
    replay_check: Callable[[Any, Any], bool] | str | None
