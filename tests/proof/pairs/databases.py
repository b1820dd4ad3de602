"""How a site reaches its databases: through a pool or a pooler, in the schema of a tenant."""
# mypy: ignore-errors

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import connections
from django.utils.decorators import sync_and_async_middleware
from psycopg import IsolationLevel

from django_idempotency.http import scopes
from tests.app.models import Effect
from tests.proof.pairs.features import Case
from tests.services.pgbouncer import PgBouncer
from tests.services.postgres import URL_VARIABLE

__all__ = [
    "PUBLIC",
    "TENANTS",
    "connected",
    "drop_schemas",
    "empty",
    "go_to",
    "make_schemas",
    "pooler",
    "scope_of",
    "tenant",
]

ALIASES = ("default", "other")
#: The first one is whose schema a test looks at.
TENANTS = ("tenant_a", "tenant_b")
#: A tenant whose schema is that of a new session.
PUBLIC = "public"
#: What a tenant has tables of its own for, beside the users and the sessions of all.
TABLES = ("idempotency_record", "app_effect")


def pooler() -> PgBouncer:
    """Return a pooler in transaction mode."""
    return PgBouncer(os.environ[URL_VARIABLE], sessions=8)


@contextmanager
def connected(case: Case, pooler_port: int) -> Iterator[None]:
    """Connect as the case says."""
    connections.close_all()
    with ExitStack() as stack:
        for alias in ALIASES:
            settings = connections.settings[alias]
            options = dict(settings["OPTIONS"])
            changes: dict[str, Any] = {"OPTIONS": options}
            if alias == "default":
                changes["ATOMIC_REQUESTS"] = case.transactions == "atomic_requests"
                if case.isolation == "repeatable read":
                    options["isolation_level"] = IsolationLevel.REPEATABLE_READ
            if case.connection == "pool":
                options["pool"] = {"min_size": 0, "max_size": 8, "timeout": 20}
            elif case.connection == "pooler":
                changes |= {"PORT": str(pooler_port), "DISABLE_SERVER_SIDE_CURSORS": True}
            if (alias, case.fail_open) == (case.store, "down"):
                changes |= {"HOST": "127.0.0.1", "PORT": "1"}
            stack.enter_context(mock.patch.dict(settings, changes))
            stack.callback(connections[alias].close_pool)
        stack.callback(connections.close_all)
        yield


def make_schemas() -> None:
    """Make a schema for each tenant."""
    for alias in ALIASES:
        with connections[alias].cursor() as cursor:
            for name in TENANTS:
                cursor.execute(f"CREATE SCHEMA {name}")
                for table in TABLES:
                    there = f"{name}.{table}"
                    cursor.execute(f"CREATE TABLE {there} (LIKE public.{table} INCLUDING ALL)")


def drop_schemas() -> None:
    """Drop them."""
    for alias in ALIASES:
        with connections[alias].cursor() as cursor:
            for name in TENANTS:
                cursor.execute(f"DROP SCHEMA {name} CASCADE")


def go_to(name: str) -> None:
    """Let the connections of this thread be those of a tenant."""
    for alias in ALIASES:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT set_config('search_path', %s, false)", [f"{name}, public"])


def empty(case: Case) -> None:
    """Delete what a site has left in the tables of its tenants, and its effects."""
    Effect.objects.all().delete()
    if case.schema == "tenant":
        for alias in ALIASES:
            with connections[alias].cursor() as cursor:
                for name in (PUBLIC, *TENANTS):
                    for table in TABLES:
                        cursor.execute(f"DELETE FROM {name}.{table}")


@sync_and_async_middleware
def tenant(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give a request the schema of its tenant, as projects do."""

    if iscoroutinefunction(get_response):

        async def amiddleware(request: Any) -> Any:
            await sync_to_async(go_to)(request.headers["X-Tenant"])
            return await get_response(request)

        return amiddleware

    def middleware(request: Any) -> Any:
        go_to(request.headers["X-Tenant"])
        return get_response(request)

    return middleware


def scope_of(case: Case) -> Any:
    """Return the setting SCOPE: a store without schemas needs the tenant in the scope."""
    if case.schema == "none" or case.store in ("database", "other"):
        return f"django_idempotency.http.scopes.{case.scope}"
    inner = getattr(scopes, case.scope)

    def scope(request: Any) -> str:
        return scopes.of_tenant(request.headers["X-Tenant"], inner(request))

    return scope
