"""The fields of the policies as keyword arguments, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

__all__ = ["HTTPPolicyOptions", "PolicyOptions"]

#: A number means seconds.
Duration = timedelta | float
#: Not a str, whose letters would be the names.
Names = list[str] | tuple[str, ...] | set[str] | frozenset[str]
Secrets = str | bytes | Sequence[str | bytes]
Transaction = Literal["single", "joined", "separate"]
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
    deadline: Callable[[], float] | None
    fingerprint_secrets: Secrets
    scope_quota: int | None
    scope_quota_cache: str
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
