"""A PgBouncer of our own, in front of a PostgreSQL server: each transaction on any session."""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from tests.services.packages import find
from tests.services.postgres import takes_sessions, url_of
from tests.services.servers import HOST, OwnServer

# Round robin: the session that has been idle for longest is next, so the transactions of one client
# go from session to session, where PgBouncer would else like to give back the last one.
_CONFIGURATION = """
[databases]
* = {server}

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 300
server_round_robin = 1
query_wait_timeout = 30
"""


class PgBouncer(OwnServer):
    """
    PgBouncer in transaction mode, with a few sessions on the server at `server_url`.

    It lets everybody in, as the server's own user.
    """

    name = "pgbouncer"
    death_signal = signal.SIGTERM
    port_taken = "ddress already in use"
    as_nobody = True
    telling = True

    def __init__(self, server_url: str, *, sessions: int = 4) -> None:
        super().__init__()
        self.sessions = sessions
        self._program = find("pgbouncer")
        self._server = urlsplit(server_url)

    @property
    def url(self) -> str:
        return url_of(self.port)

    def _command(self) -> list[str | Path]:
        configuration = self.directory / "pgbouncer.ini"
        server = _connection_string(self._server)
        configuration.write_text(
            _CONFIGURATION.format(server=server, host=HOST, port=self.port, sessions=self.sessions)
        )
        return [self._program, configuration]

    def _answers(self) -> bool:
        return takes_sessions(self.url)


def _connection_string(server: SplitResult) -> str:
    """Where the server is and as whom, in PgBouncer's own quoting."""
    words = {
        "host": server.hostname or HOST,
        "port": str(server.port or 5432),
        "user": unquote(server.username or ""),
        "password": unquote(server.password or ""),
    }
    quoted = {name: word.replace("'", "''") for name, word in words.items() if word}
    return " ".join(f"{name}='{word}'" for name, word in quoted.items())
