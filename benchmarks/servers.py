"""The servers that are measured: as a project has them, fsync on, over a socket."""

from __future__ import annotations

import tempfile

from tests.services.postgres import PostgresServer

__all__ = ["SOCKETS", "durable_postgres"]

#: Where the server's socket is: every user may write there.
SOCKETS = tempfile.gettempdir()


def durable_postgres() -> PostgresServer:
    """Return a server that loses nothing, and listens on a socket, too."""
    return PostgresServer(18, durable=True, options={"unix_socket_directories": SOCKETS})
