"""django-tenants, through its middleware: a schema for each tenant, by each of its settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.services.postgres import URL_VARIABLE, django_settings
from tests.services.processes import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.leg("postgres18")]


@pytest.fixture
def database() -> Iterator[dict[str, Any]]:
    """A new database, which is empty."""
    name = f"tenants_{uuid4().hex[:8]}"
    url = os.environ[URL_VARIABLE]
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        yield django_settings(url, name)
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize(
    ("limit", "apps", "options"),
    [
        (False, "tenant", {}),
        (True, "tenant", {}),
        (True, "tenant", {"CONN_MAX_AGE": 60}),
        (True, "tenant", {"OPTIONS": {"pool": {"min_size": 0, "max_size": 10}}}),
        (False, "both", {}),
        (False, "shared", {}),
    ],
    ids=["set each time", "set once", "kept connections", "a pool", "both", "shared"],
)
def test_R98_I10_two_tenants_send_the_same_key(
    database: dict[str, Any], limit: bool, apps: str, options: dict[str, Any]
) -> None:
    settings = {**database, **options}
    settings["OPTIONS"] = {**database["OPTIONS"], **options.get("OPTIONS", {})}
    env = {**os.environ, "DATABASE": json.dumps(settings), "LIMIT": str(limit), "APPS": apps}
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.tenants.project"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name, answers in found["told"].items():
        expected = {"status": 201, "tenant": name}
        first, again = {**expected, "replayed": None}, {**expected, "replayed": "true"}
        assert answers == [first, again, first, again]  # of a coroutine, too
    assert found["payments"] == {"a": 2, "b": 2}
    assert found["left"] == ({"public": 0} if apps == "shared" else {"a": 0, "b": 2})
    assert found["path"].replace('"', "") == "b, public"
