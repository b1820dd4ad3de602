"""System checks of the IDEMPOTENCY setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_idempotency.conf import stores
from django_idempotency.policy import HTTPPolicy, Policy
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore

__all__ = ["check_aliases", "check_isolation", "check_servers"]

_DOTTED_PATHS = ("scope", "error_renderer", "replay_check", "fingerprint")


@register("idempotency")
def check_aliases(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Each alias names a store that can be built, and a policy that makes sense."""
    found: list[CheckMessage] = []
    try:
        aliases = list(stores)
    except ImproperlyConfigured as error:
        hint = "Leave IDEMPOTENCY out to use the default database, or add the alias 'default'."
        return [Error(str(error), hint=hint, id="django_idempotency.E001")]
    for alias in aliases:
        try:
            configured = stores.configured(alias)
        except ImproperlyConfigured as error:
            hint = f"Correct IDEMPOTENCY[{alias!r}]; the settings page lists every name."
            found.append(Error(str(error), hint=hint, id="django_idempotency.E002"))
            continue
        if not configured.store.checks_server:
            found.extend(configured.store.check())
        found.extend(_lease_and_retention(alias, configured.policy))
        found.extend(_importable(alias, configured.http_policy))
        if isinstance(configured.store, MemoryStore) and not settings.DEBUG:
            found.append(
                Warning(
                    f"IDEMPOTENCY[{alias!r}] keeps its records in the memory of one process.",
                    hint="Use the database store: other processes run the same key again.",
                    id="django_idempotency.W002",
                )
            )
    return found


@register("idempotency", deploy=True)
def check_servers(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The servers of the stores are set up as the guarantees need it."""
    if any(message.is_serious() for message in check_aliases()):
        return []  # what is wrong there comes first
    return [
        message
        for alias in stores
        if stores[alias].checks_server
        for message in stores[alias].check()
    ]


@register(Tags.database)
def check_isolation(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """A lease is not renewed during joined work above READ COMMITTED, so it must cover it."""
    found: list[CheckMessage] = []
    if any(message.is_serious() for message in check_aliases()):
        return found  # what is wrong there comes first
    for alias in stores:
        configured = stores.configured(alias)
        store = configured.store
        if not isinstance(store, DatabaseStore) or store.using not in (databases or ()):
            continue
        if (unsupported := store.unsupported()) is not None:
            found.append(
                Error(
                    f"IDEMPOTENCY[{alias!r}] keeps its records in {unsupported}, which lacks what "
                    f"the statements of the database store need.",
                    hint="Use PostgreSQL, MariaDB 10.6 or newer, SQLite 3.35 or newer, or another "
                    "store.",
                    id="django_idempotency.E011",
                )
            )
            continue
        if configured.policy.transaction in ("single", "separate") or store.is_read_committed():
            continue
        found.append(
            Warning(
                f"IDEMPOTENCY[{alias!r}] commits jointly on a database whose isolation level is "
                f"above READ COMMITTED, where leases cannot be renewed.",
                hint="Make LEASE longer than the longest work, or set TRANSACTION to 'single'.",
                id="django_idempotency.W003",
            )
        )
    return found


def _lease_and_retention(alias: str, policy: Policy) -> Iterator[CheckMessage]:
    if policy.lease > policy.retention:
        yield Warning(
            f"IDEMPOTENCY[{alias!r}] has a LEASE that is longer than its RETENTION.",
            hint="A record should answer for longer than one attempt may take.",
            id="django_idempotency.W001",
        )


def _importable(alias: str, http: HTTPPolicy) -> Iterator[CheckMessage]:
    for name in _DOTTED_PATHS:
        value = getattr(http, name)
        if not isinstance(value, str) or value in ("json", "raw"):
            continue
        try:
            import_string(value)
        except ImportError as error:
            yield Error(
                f"IDEMPOTENCY[{alias!r}]['HTTP'][{name.upper()!r}] cannot be imported: {error}",
                hint="Give a callable, or the dotted path of one.",
                id="django_idempotency.E005",
            )
