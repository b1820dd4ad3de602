"""A RabbitMQ node of our own, with an epmd of its own."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

from tests.services.packages import find
from tests.services.servers import HOST, OwnServer, free_port

URL_VARIABLE = "IDEMPOTENCY_TEST_AMQP_URL"


class _Epmd(OwnServer):
    """Erlang's names of nodes, in the foreground: the one that a node starts would outlive it."""

    name = "epmd"

    def _command(self) -> list[str | Path]:
        return [find("epmd"), "-port", str(self.port)]

    def _answers(self) -> bool:
        return _says(self.port, b"\x00\x01n") is not None


class RabbitMQServer(OwnServer):
    """A node, whose user is guest, as everywhere on loopback."""

    name = "rabbitmq"
    start_seconds = 180.0

    def __init__(self) -> None:
        super().__init__()
        self._server = find("rabbitmq-server")
        self._epmd = _Epmd()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    def close(self) -> None:
        super().close()
        self._epmd.close()

    def _prepare(self) -> None:
        self._epmd.start()
        self.port = free_port()
        directory = self.directory
        (directory / "plugins").write_text("[].\n")
        self.env = {
            "HOME": str(directory),  # for the cookie that its tools and it share
            "ERL_EPMD_PORT": str(self._epmd.port),
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

    def _command(self) -> list[str | Path]:
        # Debian's command changes to the user rabbitmq; what it calls runs as whoever calls.
        inner = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        return [inner if os.access(inner, os.X_OK) else self._server]

    def _answers(self) -> bool:
        # A method frame: Connection.Start.
        return _says(self.port, b"AMQP\x00\x00\x09\x01") == b"\x01"


def _says(port: int, word: bytes) -> bytes | None:
    """Return the first byte that comes for this word; None if nothing listens."""
    try:
        with socket.create_connection((HOST, port), timeout=5) as connection:
            connection.sendall(word)
            return connection.recv(1)
    except OSError:
        return None
