"""A RabbitMQ node of our own, with an epmd of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path
from shutil import rmtree

from tests.services.packages import find
from tests.services.postgres import HOST, free_port
from tests.services.processes import OwnServer, end, spawn, wait_until

URL_VARIABLE = "IDEMPOTENCY_TEST_AMQP_URL"
START_SECONDS = 90.0


class RabbitMQServer(OwnServer):
    """
    A node on 127.0.0.1 with a directory of its own; a context manager.

    It dies with the thread that started it. Its user is guest, as everywhere on loopback.
    """

    def __init__(self) -> None:
        self.port = 0
        self._server = find("rabbitmq-server")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._directory: Path | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    @property
    def log(self) -> str:
        """What it has written so far."""
        assert self._directory is not None, "the node was never started"
        return (self._directory / "log").read_text(errors="replace")

    def start(self) -> RabbitMQServer:
        """Start, and return when it takes connections."""
        directory = Path(tempfile.mkdtemp(prefix="idempotency-rabbitmq-"))
        self._directory = directory
        self.port = free_port()
        (directory / "plugins").write_text("[].\n")
        environment = {
            "HOME": str(directory),  # for the cookie that its tools and it share
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_NODENAME": f"idempotency-{uuid.uuid4().hex[:8]}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_CONFIG_FILE": str(directory / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
        }
        with (directory / "log").open("wb") as output:
            # In the foreground: the one that a node starts would outlive it.
            for command in ([find("epmd")], [_inner(self._server)]):
                self._processes.append(
                    spawn(command, output=output, env=environment, cwd=directory)
                )
        try:
            wait_until(self._answers, seconds=START_SECONDS, what="RabbitMQ to answer")
        except (RuntimeError, TimeoutError) as error:
            raise RuntimeError(f"{error}\n{self.log}") from error
        return self

    def close(self) -> None:
        """Stop and remove the directory."""
        while self._processes:
            end(self._processes.pop(), signal.SIGTERM)
        if self._directory is not None:
            rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(f"a process of the node ended with {process.returncode}")
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"  # a method frame: Connection.Start
        except OSError:
            return False


def _inner(server: Path) -> Path:
    """Debian's command changes to the user rabbitmq; what it calls then runs as whoever calls."""
    inner = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return inner if os.access(inner, os.X_OK) else server
