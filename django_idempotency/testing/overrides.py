"""Replaces the store of an alias, for a block, a test or a class of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.test.utils import TestContextDecorator, override_settings

from django_idempotency.conf import DEFAULT_ALIAS, DEFAULT_BACKEND, store_for
from django_idempotency.stores.base import BaseStore

__all__ = ["given", "override_store"]

_NAMES = {
    "database": DEFAULT_BACKEND,
    "dynamodb": "django_idempotency.stores.dynamodb.DynamoDBStore",
    "memory": "django_idempotency.stores.memory.MemoryStore",
    "redis": "django_idempotency.stores.redis.RedisStore",
}
_GIVEN = f"{__name__}.given"


def given(*, store: BaseStore | Callable[..., BaseStore], **options: Any) -> BaseStore:
    """Return the store, or a new one of the class: what BACKEND names where no path does."""
    return store if isinstance(store, BaseStore) else store(**options)


class override_store(TestContextDecorator):
    """
    Replace the store of an alias; ``with override_store("memory") as store:``, or a decorator.

    `store` is "database", "dynamodb", "memory" or "redis", a dotted path, a class of stores, or a
    store. `options` are the constructor's. The policy of the alias stays, except for a TRANSACTION
    that the store does not support. Blocks nest, each with its own store. As a decorator of a
    TestCase, or of a test, it gives the store as `attr_name` or `kwarg_name`. Raises InvalidStore.
    """

    def __init__(
        self,
        store: str | BaseStore | type[BaseStore],
        alias: str = DEFAULT_ALIAS,
        *,
        attr_name: str | None = None,
        kwarg_name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(attr_name=attr_name, kwarg_name=kwarg_name)
        if isinstance(store, str):
            self._description = {"BACKEND": _NAMES.get(store, store), "OPTIONS": options}
        elif isinstance(store, BaseStore) and options:
            raise TypeError("A store that is given as an object takes no options.")
        elif isinstance(store, BaseStore) or _is_class_of_stores(store):
            self._description = {"BACKEND": _GIVEN, "OPTIONS": {"store": store, **options}}
        else:
            raise TypeError(
                f"override_store takes {', '.join(map(repr, _NAMES))}, a dotted path, a class of "
                f"stores or a store, and the constructor's arguments by name; not a "
                f"{type(store).__name__}."
            )
        self._alias = alias

    def enable(self) -> BaseStore:
        """Replace the store, and return the new one."""
        aliases = dict(getattr(settings, "IDEMPOTENCY", None) or {DEFAULT_ALIAS: {}})
        store = self._built()
        # As an object: each further change of the setting would build a described store anew.
        described = {**aliases.get(self._alias, {}), "BACKEND": _GIVEN, "OPTIONS": {"store": store}}
        if not store.supports_join and described.get("TRANSACTION") in ("single", "joined"):
            del described["TRANSACTION"]
        self._override = override_settings(IDEMPOTENCY={**aliases, self._alias: described})
        self._override.enable()
        try:
            return store_for(self._alias)
        except BaseException:
            self._override.disable()
            raise

    def disable(self) -> None:
        """Restore the previous store."""
        self._override.disable()

    def _built(self) -> BaseStore:
        """Return the store; raise InvalidStore as the setting does."""
        with override_settings(IDEMPOTENCY={DEFAULT_ALIAS: {}, self._alias: self._description}):
            return store_for(self._alias)


def _is_class_of_stores(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseStore)
