"""What importing the package pulls in: one process, which loads as little as it can."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.services.processes import ROOT

#: Each step must leave these alone.
CLIENTS = ("boto3", "botocore", "celery", "jmespath", "psycopg", "redis", "rest_framework")
CODE = f"""
import sys

def loaded(names):
    return [name for name in names if name in sys.modules]

import django_idempotency
from django_idempotency import InProgress, InvalidKey
assert not loaded(("django", *{CLIENTS})), loaded(("django", *{CLIENTS}))

import django
from django.conf import settings
settings.configure(
    SECRET_KEY="secret",
    INSTALLED_APPS=["django_idempotency"],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
)
django.setup()

from django.core.management import call_command
with open("/dev/null", "w") as nowhere:
    call_command("migrate", verbosity=0)
    call_command("check", stdout=nowhere)
    outcomes = [django_idempotency.run(lambda lease: 5, key="k", scope="s") for _ in range(2)]
    assert [outcome.replayed for outcome in outcomes] == [False, True]
    call_command("idempotency_sweep", stdout=nowhere)
assert not loaded({CLIENTS}), loaded({CLIENTS})
"""


SETUP = """
import sys
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["rest_framework", "django_idempotency"])
django.setup()
for name in ("rest_framework.views", "django_idempotency.engine", "django_idempotency.http"):
    assert name not in sys.modules, name
"""


@pytest.mark.processes
@pytest.mark.parametrize("code", [CODE, SETUP], ids=["the app without clients", "setup alone"])
def test_only_what_is_used_is_imported(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
