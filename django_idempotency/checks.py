"""System checks of the IDEMPOTENCY setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_idempotency.callables import signature_problem
from django_idempotency.conf import policy_for, stores, written_as
from django_idempotency.policy import CALLED_WITH, HTTPPolicy, Policy
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.memory import MemoryStore

_DOTTED_PATHS = ("scope", "error_renderer", "replay_check", "fingerprint")


def check_aliases() -> Iterator[CheckMessage]:
    """Each alias names a store that can be built, and has a valid policy."""
    try:
        aliases = list(stores)
    except ImproperlyConfigured as error:
        hint = 'Leave IDEMPOTENCY out to use the default database, or write {"default": {...}}.'
        yield Error(str(error), hint=hint, id="django_idempotency.E001")
        return
    for alias in aliases:
        try:
            configured = stores.configured(alias)
        except ImproperlyConfigured as error:
            hint = f"Correct IDEMPOTENCY[{alias!r}]; the settings page lists every name."
            if written := written_as(alias):
                hint = f"Write {written}."
            yield Error(str(error), hint=hint, id="django_idempotency.E002")
            continue
        if not configured.store.checks_server:
            yield from configured.store.check()
        yield from _lease_and_retention(alias, configured.policy)
        yield from _steps(alias, configured.store, configured.policy)
        yield from _importable(alias, configured.http_policy)
        if isinstance(configured.store, MemoryStore) and not settings.DEBUG:
            yield Warning(
                f"IDEMPOTENCY[{alias!r}] keeps its records in the memory of one process.",
                hint="Use the database store: other processes run the same key again.",
                id="django_idempotency.W002",
            )


def check_names() -> list[CheckMessage]:
    """A setting whose name is nearly IDEMPOTENCY has no effect."""
    return [
        Warning(
            f"Nothing reads the setting {name}.",
            hint=_meant_setting(name),
            id="django_idempotency.W013",
        )
        for name in dir(settings)
        if name.isupper() and name != "IDEMPOTENCY" and _looks_like_ours(name)
    ]


def _looks_like_ours(name: str) -> bool:
    name = name.removeprefix("DJANGO_")
    return name.startswith("IDEMPOTEN") or bool(get_close_matches(name, ["IDEMPOTENCY"], 1, 0.8))


def _meant_setting(name: str) -> str:
    written = written_as(name.removeprefix("DJANGO_").removeprefix("IDEMPOTENCY_"))
    if written is None:
        return (
            "The one setting is IDEMPOTENCY, a dict of aliases: "
            'IDEMPOTENCY = {"default": {"LEASE": 60}}. Silence this if another package reads it.'
        )
    return f"Write {written}. Silence this if another package reads it."


def check_servers() -> list[CheckMessage]:
    """The servers of the stores are configured as the guarantees require."""
    if any(message.is_serious() for message in check_aliases()):
        return []  # what is wrong there comes first
    return [
        message
        for alias in stores
        if stores[alias].checks_server
        for message in stores[alias].check()
    ]


def check_databases(databases: Sequence[str] | None) -> list[CheckMessage]:
    """The databases of the stores can run their statements, and have their table."""
    if any(message.is_serious() for message in check_aliases()):
        return []  # what is wrong there comes first
    return [
        message
        for alias in stores
        if stores[alias].using in (databases or ())
        for message in stores[alias].check_database(policy_for(alias))
    ]


def _lease_and_retention(alias: str, policy: Policy) -> Iterator[CheckMessage]:
    if policy.lease > policy.retention:
        yield Warning(
            f"IDEMPOTENCY[{alias!r}] has a LEASE that is longer than its RETENTION.",
            hint="A record should answer for longer than one attempt may take.",
            id="django_idempotency.W001",
        )


def _steps(alias: str, store: BaseStore, policy: Policy) -> Iterator[CheckMessage]:
    if store.steps_bytes is not None and policy.max_steps_bytes > store.steps_bytes:
        yield Error(
            f"IDEMPOTENCY[{alias!r}] has MAX_STEPS_BYTES = {policy.max_steps_bytes}, and a record "
            f"of its store holds {store.steps_bytes} bytes of notes.",
            hint="Lower it, and let steps return ids, not documents.",
            id="django_idempotency.E028",
        )


def _importable(alias: str, http: HTTPPolicy) -> Iterator[CheckMessage]:
    for name, problem in path_problems(http):
        yield Error(
            f"IDEMPOTENCY[{alias!r}]['HTTP'][{name.upper()!r}] {problem}",
            hint="Give a callable, or the dotted path of one.",
            id="django_idempotency.E005",
        )


def path_problems(http: HTTPPolicy) -> Iterator[tuple[str, str]]:
    """Yield each field with the dotted path of a callable, and what is wrong with that."""
    for name in _DOTTED_PATHS:
        path = getattr(http, name)
        if not isinstance(path, str) or path in ("json", "raw"):
            continue
        try:
            value = import_string(path)
        except ImportError as error:
            yield name, f"cannot be imported: {error}"
            continue
        if not callable(value):
            yield name, f"is no callable: {path}."
        elif problem := signature_problem(name, value, *CALLED_WITH[name]):
            yield name, f"does not fit: {problem}"
