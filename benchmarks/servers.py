"""The servers that are measured: as a project has them, fsync on, over a socket."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import psycopg

from tests.services.postgres import PostgresServer

__all__ = ["SOCKETS", "durable_postgres", "fill", "session", "written"]

#: Where the server's socket is: every user may write there.
SOCKETS = tempfile.gettempdir()


def durable_postgres(options: Mapping[str, str] | None = None) -> PostgresServer:
    """Return a server that loses nothing, and listens on a socket, too."""
    sockets = {"unix_socket_directories": SOCKETS}
    return PostgresServer(18, durable=True, options={**sockets, **(options or {})})


def session(postgres: PostgresServer, database: str) -> psycopg.Connection[Any]:
    """Return a session with a database, each of whose statements commits."""
    url = postgres.url.replace("/postgres?", f"/{database}?")
    return psycopg.connect(url, autocommit=True)


def written(watching: psycopg.Connection[Any]) -> int:
    """Return how many bytes of WAL the server has written."""
    row = watching.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])


#: Completed records, as the library writes them; those that expired did so within a day.
_FILL = """
INSERT INTO idempotency_record (
       id, scope, key, operation, fingerprint, state, epoch, token,
       lease_until, created_at, updated_at, expires_at, attempts, result, error)
SELECT gen_random_uuid(), 'scope', gen_random_uuid(), '', %(fingerprint)s, 'COMPLETED',
       n, gen_random_uuid(), NULL, now() - interval '2 days', now() - interval '2 days',
       now() + %(sign)s * (interval '1 second' + n %% 86000 * interval '1 second'),
       1, %(result)s, ''
  FROM generate_series(1, %(count)s) AS n
"""


def fill(filling: psycopg.Connection[Any], count: int, *, expired: bool) -> None:
    """Insert so many records."""
    filling.execute("SET synchronous_commit = off")
    values = {"fingerprint": b"f" * 32, "result": b"x" * 200, "count": count}
    filling.execute(_FILL, {**values, "sign": -1 if expired else 1})
