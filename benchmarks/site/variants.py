"""How each variant is installed. The standard library alone: each environment imports this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["VARIANTS", "Variant"]


@dataclass(frozen=True)
class Variant:
    """One way to answer the same request."""

    #: The class of benchmarks.site.views that answers (or a function, of plain views).
    view: str
    environment: str = "ours"
    apps: tuple[str, ...] = ()
    middleware: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The variant that the ratio is taken to: the bare view in the same environment.
    bare: str = "bare"
    redis: bool = False


def _view(plain: bool, *, opens_transaction: bool) -> str:
    """Return the view: where the guard opens no transaction, the view does, as the bare one."""
    name = "plain_guarded" if plain else "Guarded"
    if opens_transaction:
        return name
    return f"{name}_in_atomic" if plain else f"{name}InAtomic"


def _ours(mode: str, *, plain: bool = False, **policy: Any) -> Variant:
    return Variant(
        _view(plain, opens_transaction=mode != "separate"),
        apps=("django_idempotency",),
        settings={"IDEMPOTENCY": {"default": {"TRANSACTION": mode, **policy}}},
        bare="plain bare" if plain else "bare",
    )


def _on_redis(*, plain: bool = False) -> Variant:
    backend = "django_idempotency.stores.redis.RedisStore"
    return Variant(
        _view(plain, opens_transaction=False),
        apps=("django_idempotency",),
        settings={"IDEMPOTENCY": {"default": {"BACKEND": backend, "OPTIONS": {"url": "REDIS"}}}},
        bare="plain bare" if plain else "bare",
        redis=True,
    )


_DRF_IDEMPOTENCY: dict[str, Any] = {
    "apps": ("drf_idempotency",),
    "middleware": ("drf_idempotency.middleware.IdempotencyMiddleware",),
    "environment": "drf-idempotency",
    "bare": "bare (drf-idempotency)",
}
_KEY = "django-idempotency-key"

VARIANTS: dict[str, Variant] = {
    "bare": Variant("Bare"),
    "floor joined": Variant("TwoPhase"),
    "floor single": Variant("LateInsert"),
    "floor Redis": Variant("Scripts", redis=True),
    "joined": _ours("joined"),
    "joined, not prepared": _ours("joined", OPTIONS={"prepare": False}),
    "joined, async claim": _ours("joined", OPTIONS={"async_claim": True}),
    "single": _ours("single"),
    "separate": _ours("separate"),
    "Redis": _on_redis(),
    "plain bare": Variant("plain_bare", bare="plain bare"),
    "plain joined": _ours("joined", plain=True),
    "plain single": _ours("single", plain=True),
    "plain separate": _ours("separate", plain=True),
    "plain Redis": _on_redis(plain=True),
    "bare (drf-idempotency)": Variant(
        "Bare", environment="drf-idempotency", bare="bare (drf-idempotency)"
    ),
    "drf-idempotency, database": Variant("Bare", **_DRF_IDEMPOTENCY),
    "drf-idempotency, Redis": Variant(
        "Bare",
        settings={
            "IDEMPOTENCY": {
                "BACKEND": "drf_idempotency.backends.redis.RedisBackend",
                "BACKEND_OPTIONS": {"url": "REDIS"},
            }
        },
        redis=True,
        **_DRF_IDEMPOTENCY,
    ),
    "bare (drf-idempotencykey)": Variant(
        "Bare", environment="drf-idempotencykey", bare="bare (drf-idempotencykey)"
    ),
    "drf-idempotencykey": Variant(
        "MixedIn",
        apps=("drf_idempotencykey",),
        environment="drf-idempotencykey",
        bare="bare (drf-idempotencykey)",
    ),
    f"bare ({_KEY})": Variant("Bare", environment=_KEY, bare=f"bare ({_KEY})"),
    f"{_KEY}, Redis": Variant(
        "Bare",
        middleware=("idempotency_key.middleware.IdempotencyKeyMiddleware",),
        settings={
            "IDEMPOTENCY_KEY": {
                "CONFLICT_STATUS_CODE": None,  # a replay has the status of the first answer
                "STORAGE": {"CLASS": "idempotency_key.storage.CacheKeyStorage"},
                "LOCK": {
                    "CLASS": "idempotency_key.locks.redis.MultiProcessRedisLock",
                    "LOCATION": "REDIS",
                },
            },
        },
        environment=_KEY,
        bare=f"bare ({_KEY})",
        redis=True,
    ),
}
