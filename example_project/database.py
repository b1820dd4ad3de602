"""The shop's database, read from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured


def database_from_environment(environ: Mapping[str, str], default_path: Path) -> dict[str, Any]:
    """
    Return an entry for ``DATABASES``.

    ``EXAMPLE_DATABASE_URL`` (``postgres://user:password@host:port/name?option=value``) comes first,
    then ``EXAMPLE_DATABASE`` (the path of a SQLite file), then a SQLite file at ``default_path``.
    """
    if url := environ.get("EXAMPLE_DATABASE_URL"):
        return postgresql(url)
    return sqlite(environ.get("EXAMPLE_DATABASE") or default_path)


def postgresql(url: str) -> dict[str, Any]:
    """Return the entry for a PostgreSQL URL; its query becomes the driver's options."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured("EXAMPLE_DATABASE_URL must start with postgres://.")
    options: dict[str, str] = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        # A unix socket's directory does not fit into a URL's host: ?host=/run/postgresql
        "HOST": options.pop("host", parts.hostname or ""),
        "PORT": options.pop("port", str(parts.port or "")),
        "OPTIONS": options,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }


def sqlite(path: str | Path) -> dict[str, Any]:
    """Return the entry for a SQLite file that several processes write to."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            # Take the write turn when a transaction begins. A transaction that reads first and
            # writes later would be refused ("database is locked") if another one got in between.
            "transaction_mode": "IMMEDIATE",
            "timeout": 10,
            "init_command": "PRAGMA journal_mode=WAL",
        },
    }
