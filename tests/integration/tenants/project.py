"""
A project of django-tenants, and one story in it, whose end it prints as JSON.

Two tenants send the same key at the same time, twice each. The first request of each takes longer
than its lease, the second waits for it. DATABASE is the entry of DATABASES, LIMIT the setting
TENANT_LIMIT_SET_CALLS, APPS where the library is installed, POOL whether connections have a pool.
"""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.urls import path

PATIENCE = 60
DATABASE = json.loads(os.environ["DATABASE"])
WHERE = os.environ["APPS"]
NAMES = ("a", "b")


def scope(request: Any) -> str:
    """One table for all tenants needs them in the scope; a table for each does not."""
    return str(request.tenant.schema_name) if WHERE == "shared" else "anyone"


SHARED = ["django_tenants", "tests.integration.tenants", "django.contrib.contenttypes"]
TENANT = ["django.contrib.contenttypes"]
SHARED += ["django_idempotency"] if WHERE in ("shared", "both") else []
TENANT += ["django_idempotency"] if WHERE in ("tenant", "both") else []
settings.configure(
    SECRET_KEY="tenants",
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SHARED_APPS=SHARED,
    TENANT_APPS=TENANT,
    INSTALLED_APPS=[*SHARED, *(app for app in TENANT if app not in SHARED)],
    MIDDLEWARE=["django_tenants.middleware.main.TenantMainMiddleware"],
    TENANT_MODEL="tenants.Tenant",
    TENANT_DOMAIN_MODEL="tenants.Domain",
    TENANT_LIMIT_SET_CALLS=os.environ["LIMIT"] == "True",
    DATABASE_ROUTERS=["django_tenants.routers.TenantSyncRouter"],
    DATABASES={"default": {**DATABASE, "ENGINE": "django_tenants.postgresql_backend"}},
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    IDEMPOTENCY={
        "default": {
            "LEASE": 1,
            "WAIT": PATIENCE,
            "HTTP": {"SCOPE": scope, "REQUIRED": True},
        }
    },
)
django.setup()

# What follows needs Django to be set up.
from asgiref.sync import sync_to_async  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection, connections  # noqa: E402
from django.test import Client  # noqa: E402

from django_idempotency.engine.waiting import poller  # noqa: E402
from django_idempotency.http import idempotent  # noqa: E402
from tests.integration.tenants.models import Domain, Tenant  # noqa: E402
from tests.services.processes import wait_until  # noqa: E402

working = threading.Barrier(len(NAMES) + 1)
go_on = {name: threading.Event() for name in NAMES}


@idempotent
def pay(request: HttpRequest) -> JsonResponse:
    name = request.tenant.schema_name
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO payment DEFAULT VALUES")
    working.wait(PATIENCE)
    assert go_on[name].wait(PATIENCE)
    return JsonResponse({"tenant": name}, status=201)


@idempotent(transaction="joined")
async def apay(request: HttpRequest) -> JsonResponse:
    """Commit with its record, on a connection of its own."""
    name = request.tenant.schema_name
    await sync_to_async(rows)("INSERT INTO payment DEFAULT VALUES RETURNING 1")
    return JsonResponse({"tenant": name}, status=201)


urlpatterns = [path("pay", pay), path("apay", apay)]


def post(name: str, url: str = "/pay") -> dict[str, Any]:
    try:
        client = Client(
            headers={"host": f"{name}.test", "Idempotency-Key": f"the same key of {url}"}
        )
        answer = client.post(url, {"amount": 1}, "application/json")
        replayed = answer.headers.get("Idempotency-Replayed")
        return {"status": answer.status_code, "replayed": replayed, **answer.json()}
    finally:
        connections.close_all()


def rows(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def main() -> dict[str, Any]:
    call_command("migrate_schemas", schema_name="public", run_syncdb=True, verbosity=0)
    for name in NAMES:
        tenant = Tenant(schema_name=name)
        tenant.save(verbosity=0)
        Domain.objects.create(domain=f"{name}.test", tenant=tenant, is_primary=True)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {name}.payment (id serial)")
    tables = ["public"] if WHERE == "shared" else [*NAMES]

    with ThreadPoolExecutor(4) as threads:
        first = {name: threads.submit(post, name) for name in NAMES}
        working.wait(PATIENCE)
        for table in tables:
            kept = f"{table}.idempotency_record"
            renewed = f"SELECT bool_and(lease_until > created_at + interval '3 s') FROM {kept}"
            wait_until(lambda sql=renewed: rows(sql)[0][0], seconds=PATIENCE, what="renewals")
        again = {name: threads.submit(post, name) for name in NAMES}
        wait_until(
            lambda: sum(map(len, poller._waiters.values())) == len(NAMES),
            seconds=PATIENCE,
            what="the second requests to wait",
        )
        told = {}
        for name in reversed(NAMES):
            go_on[name].set()
            told[name] = [first[name].result(PATIENCE), again[name].result(PATIENCE)]
    for name in [*NAMES, *NAMES]:
        told[name].append(post(name, "/apay"))
    payments = {name: rows(f"SELECT count(*) FROM {name}.payment")[0][0] for name in NAMES}

    one = tables[0]
    connection.set_schema(NAMES[-1])
    rows(f"UPDATE {one}.idempotency_record SET expires_at = now() RETURNING 1")
    call_command("idempotency_sweep", schema=one, verbosity=0, stdout=StringIO())
    left = {
        table: rows(f"SELECT count(*) FROM {table}.idempotency_record")[0][0] for table in tables
    }
    path_after = rows("SHOW search_path")[0][0]
    return {"told": told, "payments": payments, "left": left, "path": path_after}


if __name__ == "__main__":
    print(json.dumps(main()))
