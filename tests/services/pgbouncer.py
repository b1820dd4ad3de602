"""A PgBouncer of our own, in front of a PostgreSQL server: each transaction on any session."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from urllib.parse import SplitResult, unquote, urlsplit

import psycopg

from tests.services.packages import find
from tests.services.postgres import HOST, WIRE, _server_user, _temporary, free_port
from tests.services.processes import OwnServer, end, spawn, wait_until

START_SECONDS = 30.0

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

    As root it runs as nobody. It lets everybody in, as the server's own user. It dies with the
    thread that started it.
    """

    def __init__(self, server_url: str, *, sessions: int = 4) -> None:
        self.sessions = sessions
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._program = find("pgbouncer")
        self._server = urlsplit(server_url)
        self._directory: Path | None = None

    @property
    def url(self) -> str:
        """Like the server's, with the port of PgBouncer."""
        query = "&".join(f"{name}={value}" for name, value in WIRE.items())
        return f"postgresql://postgres@{HOST}:{self.port}/postgres?{query}"

    @property
    def log(self) -> str:
        """What it has written so far."""
        if self._directory is None:
            return ""
        return (self._directory / "log").read_text(errors="replace")

    def start(self) -> PgBouncer:
        """Start, and return when it answers."""
        user = _server_user()
        folder = Path(tempfile.mkdtemp(prefix="idempotency-bouncer-", dir=_temporary(user)))
        self._directory = folder
        if user is not None:
            os.chown(folder, *user)
        for _ in range(5):
            self.port = free_port()
            if self._launch(folder, user):
                return self
        raise RuntimeError(f"PgBouncer found no free port:\n{self.log}")

    def close(self) -> None:
        """Stop at once, and remove its files."""
        if self.process is not None:
            end(self.process, signal.SIGTERM)
            self.process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            print(f"\n--- output of PgBouncer ---\n{self.log}")
        super().__exit__(kind, error, traceback)

    def _launch(self, directory: Path, user: tuple[int, int] | None) -> bool:
        """Start it; False if the port is taken."""
        configuration = directory / "pgbouncer.ini"
        configuration.write_text(
            _CONFIGURATION.format(
                server=_connection_string(self._server),
                host=HOST,
                port=self.port,
                sessions=self.sessions,
            )
        )
        with (directory / "log").open("wb") as output:
            process = spawn(
                [self._program, configuration],
                output=output,
                user=user,
                death_signal=signal.SIGTERM,
                cwd=directory,
            )
        self.process = process
        try:
            wait_until(self._answers, seconds=START_SECONDS, what="PgBouncer to answer")
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{self.log}") from error
        if process.poll() is None:
            return True
        self.process = None
        if "ddress already in use" in self.log:
            return False
        raise RuntimeError(f"PgBouncer did not start:\n{self.log}")

    def _answers(self) -> bool:
        """Whether it takes a client to a session, or has given up."""
        if self.process is None or self.process.poll() is not None:
            return True
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


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
