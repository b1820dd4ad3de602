"""The worker of a herd: 64 threads send a request at the same moment, to work of 50 ms."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CLIENTS = 64
SECONDS = 0.05


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Set up a project of one view, and return the commands."""
    import django
    from django.conf import settings

    mode, _, short_lived = variant.partition(", ")
    policy: dict[str, Any] = {
        "WAIT": 30,
        "HTTP": {"SCOPE": "django_idempotency.http.scopes.anyone"},
    }
    if mode == "Redis":
        policy["BACKEND"] = "django_idempotency.stores.redis.RedisStore"
        policy["OPTIONS"] = {"url": os.environ["BENCHMARK_REDIS"]}
    elif mode != "bare":
        policy["TRANSACTION"] = mode
    database = json.loads(os.environ["BENCHMARK_DATABASE"])
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {**database, "CONN_MAX_AGE": 0 if short_lived else None}},
        IDEMPOTENCY={"default": policy},
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "benchmarks.site",
            "django_idempotency",
        ],
        LOGGING={"version": 1, "loggers": {"django_idempotency": {"level": "ERROR"}}},
        MIGRATION_MODULES={"site": None},
        ROOT_URLCONF=__name__,
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()
    from django.core.handlers.wsgi import WSGIHandler
    from django.core.management import call_command
    from django.db import connection, transaction
    from django.http import HttpRequest, HttpResponse, JsonResponse
    from django.urls import path

    from benchmarks.site.models import Payment
    from django_idempotency.http import idempotent

    call_command("migrate", run_syncdb=True, verbosity=0)

    def pay(request: HttpRequest) -> HttpResponse:
        payment = Payment.objects.create(reference="order", amount=1, key=request.body.decode())
        time.sleep(SECONDS)
        return JsonResponse({"id": payment.pk}, status=201)

    view = transaction.atomic(pay) if mode == "bare" else idempotent(required=True)(pay)
    globals()["urlpatterns"] = [path("payments/", view)]
    handler: Any = WSGIHandler()
    pool = ThreadPoolExecutor(CLIENTS)  # as many as a server has, with their connections

    def send(key: str) -> None:
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/payments/",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "CONTENT_TYPE": "text/plain",
            "CONTENT_LENGTH": str(len(key)),
            "HTTP_IDEMPOTENCY_KEY": key,
            "wsgi.input": io.BytesIO(key.encode()),
            "wsgi.url_scheme": "http",
        }
        response = handler(environ, lambda status, headers: None)
        if response.status_code != 201:
            raise RuntimeError(f"{variant} answered {response.status_code}")
        response.close()

    def herd(keys: int) -> dict[str, Any]:
        """Send so many keys from all clients at once; microseconds from the start, ascending."""
        names = [str(uuid.uuid4()) for _ in range(keys)]
        barrier = threading.Barrier(CLIENTS + 1)
        connections: list[int] = []

        def one(number: int) -> float:
            barrier.wait()
            started = time.perf_counter_ns()
            send(names[number % keys])
            return (time.perf_counter_ns() - started) / 1000

        running = [pool.submit(one, number) for number in range(CLIENTS)]
        barrier.wait()
        time.sleep(SECONDS * 0.8)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            connections.append(cursor.fetchone()[0])
        taken = sorted(each.result() for each in running)
        effects = Payment.objects.filter(key__in=names).count()
        return {"us": taken, "connections": connections[0], "effects": effects}

    for keys in (1, CLIENTS, 1):
        herd(keys)
    return {"one key": lambda: herd(1), "64 keys": lambda: herd(CLIENTS)}
