"""System checks of the IDEMPOTENCY setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured

from django_idempotency.conf import stores
from django_idempotency.stores.memory import MemoryStore

__all__ = ["check_aliases"]


@register("idempotency")
def check_aliases(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Each alias names a store that can be built, and a policy that makes sense."""
    found: list[CheckMessage] = []
    try:
        aliases = list(stores)
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="See the settings page.", id="django_idempotency.E001")]
    for alias in aliases:
        try:
            configured = stores.configured(alias)
        except ImproperlyConfigured as error:
            found.append(
                Error(
                    str(error),
                    hint=f"Correct IDEMPOTENCY[{alias!r}]; the settings page lists every name.",
                    id="django_idempotency.E002",
                )
            )
            continue
        found.extend(configured.store.check())
        policy = configured.policy
        if policy.lease > policy.retention:
            found.append(
                Warning(
                    f"IDEMPOTENCY[{alias!r}] has a LEASE that is longer than its RETENTION.",
                    hint="A record should answer for longer than one attempt may take.",
                    id="django_idempotency.W001",
                )
            )
        if isinstance(configured.store, MemoryStore) and not settings.DEBUG:
            found.append(
                Warning(
                    f"IDEMPOTENCY[{alias!r}] keeps its records in the memory of one process.",
                    hint="Use the database store: other processes run the same key again.",
                    id="django_idempotency.W002",
                )
            )
    return found
