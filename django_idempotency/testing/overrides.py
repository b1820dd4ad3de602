"""Another store in the place of an alias's, for a block, a test or a class of tests."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.test.utils import TestContextDecorator, override_settings
from django.utils.module_loading import import_string

from django_idempotency.conf import DEFAULT_ALIAS, DEFAULT_BACKEND, store_for
from django_idempotency.stores.base import BaseStore

__all__ = ["given", "override_store"]

_NAMES = {
    "database": DEFAULT_BACKEND,
    "dynamodb": "django_idempotency.stores.dynamodb.DynamoDBStore",
    "memory": "django_idempotency.stores.memory.MemoryStore",
    "redis": "django_idempotency.stores.redis.RedisStore",
}


def given(*, store: BaseStore) -> BaseStore:
    """Return the store: what BACKEND names where a store is given as an object."""
    return store


class override_store(TestContextDecorator):
    """
    Replace the store of an alias; ``with override_store("memory") as store:``, or a decorator.

    `store` is "database", "dynamodb", "memory" or "redis", a dotted path, or a store. `options` are
    the constructor's. The policy of the alias stays, without a TRANSACTION that the store cannot
    do. As a decorator of a TestCase, or of a test, it gives the store as `attr_name` or
    `kwarg_name`. Raises InvalidStore.
    """

    def __init__(
        self,
        store: str | BaseStore,
        alias: str = DEFAULT_ALIAS,
        *,
        attr_name: str | None = None,
        kwarg_name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(attr_name=attr_name, kwarg_name=kwarg_name)
        if not isinstance(store, BaseStore):
            self._backend, self._options = _NAMES.get(store, store), options
        elif options:
            raise TypeError("A store that is given as an object takes no options.")
        else:
            self._backend, self._options = f"{__name__}.given", {"store": store}
        self._alias = alias

    def enable(self) -> BaseStore:
        """Replace the store, and return the new one."""
        aliases = dict(getattr(settings, "IDEMPOTENCY", None) or {DEFAULT_ALIAS: {}})
        described = {**aliases.get(self._alias, {})}
        described |= {"BACKEND": self._backend, "OPTIONS": self._options}
        if not self._joins() and described.get("TRANSACTION") in ("single", "joined"):
            del described["TRANSACTION"]
        self._override = override_settings(IDEMPOTENCY={**aliases, self._alias: described})
        self._override.enable()
        try:
            return store_for(self._alias)
        except BaseException:
            self._override.disable()
            raise

    def disable(self) -> None:
        """Put back what was there."""
        self._override.disable()

    def _joins(self) -> bool:
        """Whether the store can take part in a database transaction."""
        try:
            store = self._options.get("store") or import_string(self._backend)
        except ImportError:
            return False  # and InvalidStore says why it cannot be imported
        return bool(getattr(store, "supports_join", False))
