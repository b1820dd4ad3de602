"""DATABASES of the leg that runs, for the tests and for the processes they start."""

from __future__ import annotations

import json
import os
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.services import DATABASES_VARIABLE, SQLITE_VARIABLE, current_leg, mariadb
from tests.services.postgres import URL_VARIABLE, django_settings

NAMES = {"default": "idempotency", "other": "idempotency_other"}


def databases() -> dict[str, dict[str, Any]]:
    """
    Two databases on the leg's server, or two SQLite files.

    Starts nothing: without a server (under mypy, say) the entries are complete but lead nowhere.
    """
    given: dict[str, str] = json.loads(os.environ.get(DATABASES_VARIABLE, "{}"))
    if current_leg() == "sqlite":
        return {alias: _sqlite(name, given.get(alias)) for alias, name in NAMES.items()}
    if current_leg() == "mariadb":
        url = os.environ.get(mariadb.URL_VARIABLE, "mysql://root@127.0.0.1:1/")
        return {
            alias: django_settings(url, given.get(alias, name), **deepcopy(mariadb.DJANGO_SETTINGS))
            for alias, name in NAMES.items()
        }
    url = os.environ.get(URL_VARIABLE, "postgresql://postgres@127.0.0.1:1/postgres")
    return {alias: django_settings(url, given.get(alias, name)) for alias, name in NAMES.items()}


def environment_for_children() -> dict[str, str]:
    """Variables with which `tests.settings` in another process means our current databases."""
    from django.db import connections

    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in NAMES}
    return {"DJANGO_SETTINGS_MODULE": "tests.settings", DATABASES_VARIABLE: json.dumps(names)}


def _sqlite(name: str, given: str | None) -> dict[str, Any]:
    directory = Path(os.environ.get(SQLITE_VARIABLE, tempfile.gettempdir()))
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": given or str(directory / f"{name}.sqlite3"),
        # A file for the tests too: threads and processes share it, which ":memory:" cannot.
        "TEST": {"NAME": str(directory / f"test_{name}.sqlite3")},
        # Processes die in these tests, and the machine does not: nothing waits for the disk.
        "OPTIONS": {"timeout": 20, "init_command": "PRAGMA synchronous = OFF"},
    }
