"""What the database of a store, and its table, may lack."""

from __future__ import annotations

from collections.abc import Iterator

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder

from django_idempotency.policy import Policy
from django_idempotency.stores.database.statements import DIALECTS, Statements


def misfits(store: Statements) -> Iterator[CheckMessage]:
    """Give what is wrong with the store's options; asks no server."""
    using = store.using
    if using not in connections.settings:
        yield Error(
            f"The database store uses the alias {using!r}, which DATABASES lacks.",
            hint="Set OPTIONS['using'] to one of " + ", ".join(connections.settings) + ".",
            id="django_idempotency.E003",
        )
        return
    if connections[using].vendor not in DIALECTS:
        yield Error(
            f"The database store has no statements for {connections[using].vendor!r}.",
            hint="Point OPTIONS['using'] to a PostgreSQL, MariaDB or SQLite database.",
            id="django_idempotency.E004",
        )
        return
    if store.prepare is True and not store.can_prepare:
        yield Error(
            f"OPTIONS['prepare'] of the database store is True, and {using!r} prepares nothing.",
            hint="It takes PostgreSQL with psycopg 3, and neither 'server_side_binding' nor "
            "'prepare_threshold' in the OPTIONS of the database. Leave 'prepare' out to prepare "
            "where that can be.",
            id="django_idempotency.E025",
        )
    if store.async_claim and store.dialect.CLAIM_ASYNC is None:
        yield Error(
            f"OPTIONS['async_claim'] of the database store is True, and {using!r} is no PostgreSQL "
            f"database.",
            hint="Leave 'async_claim' out: each claim waits for the disk there.",
            id="django_idempotency.E026",
        )
    if store.session_variables and store.dialect.SESSION is None:
        yield Error(
            f"OPTIONS['session_variables'] of the database store is set, and {using!r} is no "
            f"PostgreSQL database.",
            hint="Leave 'session_variables' out: only PostgreSQL's sessions have them.",
            id="django_idempotency.E027",
        )


def problems(store: Statements, policy: Policy) -> Iterator[CheckMessage]:
    """Give what keeps the statements from running, or leases from being renewed."""
    if (unsupported := store.unsupported()) is not None:
        yield Error(
            f"IDEMPOTENCY[{store.alias!r}] keeps its records in {unsupported}, which lacks what "
            f"the statements of the database store need.",
            hint="Use PostgreSQL, MariaDB 10.6 or newer, SQLite 3.35 or newer, or another store.",
            id="django_idempotency.E011",
        )
        return
    if _lacks_table(connections[store.using]):
        yield Warning(
            f"IDEMPOTENCY[{store.alias!r}] has no table in the database {store.using!r}, or an old "
            f"one: every guarded call fails.",
            hint=f"Run manage.py migrate --database {store.using}; a router must allow it there.",
            id="django_idempotency.W011",
        )
    if missing := [name for name in store.variables_read() if name not in store.session_variables]:
        yield Warning(
            f"Policies or defaults of the table of IDEMPOTENCY[{store.alias!r}] read "
            f"{', '.join(missing)}, which new connections do not have: leases cannot be renewed.",
            hint="Name these variables in OPTIONS['session_variables'].",
            id="django_idempotency.W017",
        )
    # A lease is not renewed during joined work above READ COMMITTED, so it must cover it.
    joins = policy.transaction not in ("single", "separate")
    if joins and policy.renew and not store.may_renew_joined():
        yield Warning(
            f"IDEMPOTENCY[{store.alias!r}] commits jointly on a database whose isolation level is "
            f"above READ COMMITTED, where leases cannot be renewed.",
            hint="Make LEASE longer than the longest work and set RENEW to False, or set "
            "TRANSACTION to 'single'.",
            id="django_idempotency.W003",
        )


def _lacks_table(connection: BaseDatabaseWrapper) -> bool:
    """Whether the migrations still have to make the table, or one of its columns."""
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
        if MigrationRecorder.Migration._meta.db_table not in tables:
            return False  # before the very first migrate, which runs these checks itself
        table = apps.get_model("django_idempotency", "IdempotencyRecord")._meta
        if table.db_table not in tables:
            return True
        columns = connection.introspection.get_table_description(cursor, table.db_table)
    there = {column.name for column in columns}
    return any(field.column not in there for field in table.local_concrete_fields)
