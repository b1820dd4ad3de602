"""Schemas of two tenants, and a session that is one's or the other's."""

from __future__ import annotations

from django.db import connection

#: What a schema may be called: quotes, a percent sign, capital letters.
TENANTS = ("tenant_a", "Tenant 'b' 100%")


def quoted(name):
    return f'"{name}"'


def go_to(tenant):
    """Let this thread's session be that of a tenant, as a middleware does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('search_path', %s, false)", [quoted(tenant)])


def rows(tenant, columns="state, attempts"):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {quoted(tenant)}.idempotency_record")
        return cursor.fetchall()
