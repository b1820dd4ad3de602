"""
The quota of claims that a scope may make in an hour, counted in a cache of the project.

It bounds the rows that one caller can leave, and is approximate: hours are those of the clock, a
cache may forget, and claims of the same moment may all be the last one. It holds up no work: what
the cache cannot tell counts as nothing.
"""

from __future__ import annotations

import math
import time

from django.core.cache import caches
from django.utils.crypto import salted_hmac

from django_idempotency.engine.operation import Operation
from django_idempotency.observers import logger

__all__ = ["count_claim", "seconds_to_wait"]

_HOUR = 3600
_SALT = "django_idempotency.quota"


def seconds_to_wait(operation: Operation, alias: str) -> int:
    """Return 0 if the operation's scope may claim, and else the seconds until it may again."""
    now, policy = time.time(), operation.policy
    cache = caches[policy.scope_quota_cache]
    try:
        claims = int(cache.get(_name(operation, alias, now), 0))
    except Exception as error:  # whatever a cache raises
        _log_uncounted(policy.scope_quota_cache, error)
        return 0
    if policy.scope_quota is None or claims < policy.scope_quota:
        return 0
    return math.ceil(_HOUR - now % _HOUR)


def count_claim(operation: Operation, alias: str) -> None:
    """Count a claim that was won."""
    cache = caches[operation.policy.scope_quota_cache]
    name = _name(operation, alias, time.time())
    try:
        if not cache.add(name, 1, timeout=_HOUR):
            cache.incr(name)
    except Exception as error:  # whatever a cache raises
        _log_uncounted(operation.policy.scope_quota_cache, error)


def _name(operation: Operation, alias: str, now: float) -> str:
    """Return the cache's key of this hour: a keyed hash tells no reader whose scope it is."""
    whose = f"{alias}:{operation.scope}".encode(errors="surrogatepass")  # as a record id has it
    scope = salted_hmac(_SALT, whose, algorithm="sha256").hexdigest()
    return f"idempotency:quota:{scope}:{int(now // _HOUR)}"


def _log_uncounted(cache: str, error: Exception) -> None:
    """Say that the quota does not hold, without the error's text: it may quote a password."""
    logger.warning(
        "Claims are not counted: the cache %r of scope_quota does not answer (%s).",
        cache,
        type(error).__name__,
    )
