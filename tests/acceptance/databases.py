"""Databases of one's own on the leg's server, for projects that a test serves."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

from tests.services.postgres import URL_VARIABLE
from tests.services.processes import ROOT

_COMMANDS = (
    "import django\nfrom django.core.management import call_command as call\ndjango.setup()\n"
)
#: What `commands` does for the example project.
FILL_SHOP = 'call("migrate", verbosity=0)\ncall("seed", verbosity=0)'


@contextmanager
def own_database() -> Iterator[str]:
    """Give the URL of an empty database, which is dropped again."""
    server, name = os.environ[URL_VARIABLE], f"own_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as session:
        session.execute(f"CREATE DATABASE {name}")
        try:
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            session.execute(f"DROP DATABASE {name} WITH (FORCE)")


def commands(program: str, env: Mapping[str, str]) -> None:
    """Let another process call Django's commands."""
    given = {**os.environ, **env}
    subprocess.run([sys.executable, "-c", _COMMANDS + program], cwd=ROOT, env=given, check=True)
