"""The Django app."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Tags, register
from django.utils.translation import gettext_lazy as _


class IdempotencyConfig(AppConfig):
    """Guarding of requests, tasks and calls by idempotency keys."""

    name = "django_idempotency"
    verbose_name = _("Idempotency")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and what describes guarded views to drf-spectacular."""
        register(check_project, "idempotency")
        register(check_servers, "idempotency", deploy=True)
        register(check_databases, Tags.database)
        register(check_views, Tags.urls)
        if apps.is_installed("drf_spectacular"):
            from django_idempotency.contrib import spectacular  # noqa: F401


# What the checks need is imported when they run: a process that serves requests runs none.


def check_project(**kwargs: Any) -> list[CheckMessage]:
    """Check the setting and the middleware, and the tasks where Celery is imported by now."""
    from django_idempotency import checks
    from django_idempotency.http import checks as http_checks

    found = [
        *checks.check_aliases(),
        *checks.check_names(),
        *http_checks.check_middleware(),
        *http_checks.check_fail_open(),
        *http_checks.check_cors(),
    ]
    if "celery" in sys.modules:
        from django_idempotency.contrib.celery import checks as celery_checks

        found += [*celery_checks.check_tasks(), *celery_checks.check_sweep()]
    return found


def check_servers(**kwargs: Any) -> list[CheckMessage]:
    """Check the servers of the stores."""
    from django_idempotency import checks

    return checks.check_servers()


def check_databases(*, databases: Sequence[str] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check the databases of the stores."""
    from django_idempotency import checks

    return checks.check_databases(databases)


def check_views(**kwargs: Any) -> list[CheckMessage]:
    """Check the guarded views of the URLconf."""
    from django_idempotency.http import checks as http_checks

    found = http_checks.check_views()
    if apps.is_installed("rest_framework"):
        from django_idempotency.contrib.rest_framework import checks as rest_framework_checks

        found += rest_framework_checks.check_actions()
    return found
