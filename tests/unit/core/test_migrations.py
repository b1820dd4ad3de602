"""The one migration, on a database that has it and on one from before the first release."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

pytestmark = pytest.mark.django_db
APP = "django_idempotency"
PERMISSIONS = {"view_result", "view_key", "resolve_record"}


def names_of_permissions():
    return set(
        Permission.objects.filter(content_type__app_label=APP).values_list("codename", flat=True)
    )


def test_three_migrations_that_were_applied_before_the_release_leave_nothing_to_do():
    for name in ("0002_view_result", "0003_view_key_and_resolve_record"):
        MigrationRecorder(connection).record_applied(APP, name)
    executor = MigrationExecutor(connection)
    assert executor.migration_plan(executor.loader.graph.leaf_nodes(APP)) == []
    call_command("migrate", APP, verbosity=0)
    assert names_of_permissions() >= PERMISSIONS


def test_who_had_the_first_of_them_alone_gets_the_permissions():
    Permission.objects.filter(content_type__app_label=APP, codename__in=PERMISSIONS).delete()
    call_command("migrate", APP, verbosity=0)
    assert names_of_permissions() >= PERMISSIONS
