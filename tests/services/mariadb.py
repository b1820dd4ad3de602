"""A MariaDB server of our own: found, started, stopped and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.services import MissingService
from tests.services.packages import find
from tests.services.postgres import HOST, free_port
from tests.services.processes import OwnServer, end, spawn, wait_until

URL_VARIABLE = "IDEMPOTENCY_TEST_MARIADB_URL"
START_SECONDS = 30.0


def require_driver() -> Any:
    """Return MySQLdb, the driver that Django wants; MissingService where it is not installed."""
    try:
        import MySQLdb
    except ImportError as error:
        raise MissingService(
            "mysqlclient is not installed. Install it with: make services (on Debian as root: "
            "apt-get install libmariadb-dev pkg-config gcc, then pip install mysqlclient)"
        ) from error
    return MySQLdb


def django_settings(url: str, name: str, *, port: int | None = None) -> dict[str, Any]:
    """An entry of DATABASES for the database `name` on the server at `url`."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or HOST,
        "PORT": str(port or parts.port or ""),
        "OPTIONS": {"charset": "utf8mb4"},
        "TEST": {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_bin"},
    }


class MariaDBServer(OwnServer):
    """
    A server on 127.0.0.1 with a data directory of its own; a context manager.

    It dies with the thread that started it. The user is root, without a password.
    """

    def __init__(self) -> None:
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._server, self._install = find("mariadbd"), find("mariadb-install-db")
        self._driver = require_driver()
        self._directory: Path | None = None

    @property
    def url(self) -> str:
        return f"mysql://root@{HOST}:{self.port}/"

    @property
    def log(self) -> str:
        """What the server has written so far."""
        assert self._directory is not None, "the server was never started"
        path = self._directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> MariaDBServer:
        """Create the data directory if there is none, start, and return when it answers."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="idempotency-mariadb-"))
            self._initialise(self._directory)
        for _ in range(5):
            if self.port == 0:
                self.port = free_port()
            if self._launch(self._directory):
                return self
            self.port = 0  # somebody else took it in between
        raise RuntimeError(f"MariaDB found no free port:\n{self.log}")

    def close(self) -> None:
        """Stop and remove the data directory."""
        if self.process is not None:
            end(self.process, signal.SIGTERM)
            self.process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _initialise(self, directory: Path) -> None:
        command: list[str | Path] = [self._install, "--no-defaults", f"--datadir={directory}/data"]
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        with (directory / "install.log").open("wb") as output:
            process = spawn([*command, *options, *_as_root()], output=output, cwd=directory)
            code = process.wait(120)
        if code != 0:
            text = (directory / "install.log").read_text(errors="replace")
            raise RuntimeError(f"mariadb-install-db failed with {code}:\n{text}")

    def _launch(self, directory: Path) -> bool:
        """Start the server; False if the port is taken."""
        with (directory / "log").open("wb") as output:
            self.process = spawn(
                [
                    self._server,
                    "--no-defaults",
                    f"--datadir={directory}/data",
                    f"--socket={directory}/socket",
                    f"--pid-file={directory}/pid",
                    f"--bind-address={HOST}",
                    f"--port={self.port}",
                    "--max-connections=300",
                    "--skip-name-resolve",
                    "--innodb-flush-log-at-trx-commit=0",
                    "--innodb-buffer-pool-size=64M",
                    *_as_root(),
                ],
                output=output,
                death_signal=signal.SIGKILL,
                cwd=directory,
            )
        wait_until(self._answers, seconds=START_SECONDS, what="MariaDB to answer")
        if self.process.poll() is None:
            return True
        self.process = None
        if "Can't start server: Bind on TCP/IP port" in self.log:
            return False
        raise RuntimeError(f"MariaDB did not start:\n{self.log}")

    def _answers(self) -> bool:
        """Whether it takes a session, or has given up."""
        if self.process is None or self.process.poll() is not None:
            return True
        try:
            self._driver.connect(host=HOST, port=self.port, user="root").close()
        except self._driver.OperationalError:
            return False
        return True


def _as_root() -> list[str]:
    """It refuses to run as root unless told so."""
    return ["--user=root"] if os.geteuid() == 0 else []
