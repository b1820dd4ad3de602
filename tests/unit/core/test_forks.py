"""A platform without fork, such as Windows: the package is imported there, and guards."""

from __future__ import annotations

import subprocess
import sys

from tests.services.processes import ROOT

MEMORY = {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}
WITHOUT_FORK = """
import importlib, os, pkgutil, signal
for module, names in {os: ["register_at_fork", "fork", "geteuid"], signal: ["SIGKILL"]}.items():
    for name in names:
        delattr(module, name)
import django
from django.conf import settings
settings.configure(
    IDEMPOTENCY={"default": %r}, SECRET_KEY="s",
    INSTALLED_APPS=[
        "django.contrib.contenttypes", "django.contrib.auth", "django.contrib.admin",
        "django_idempotency",
    ],
)
django.setup()
import django_idempotency
for found in pkgutil.walk_packages(django_idempotency.__path__, "django_idempotency."):
    importlib.import_module(found.name)
calls = []
for _ in range(2):
    django_idempotency.run(lambda lease: calls.append("done"), key="key", scope="s")
assert calls == ["done"]
"""


def test_the_package_is_imported_and_guards_where_no_process_forks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FORK % MEMORY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
