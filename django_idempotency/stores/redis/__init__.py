"""The store on Redis or Valkey."""

from __future__ import annotations

from django_idempotency.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
