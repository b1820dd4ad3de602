"""A uvicorn of our own: one real server process behind a socket that the test opened."""

from __future__ import annotations

import signal
import sys

from tests.services.servers import Server

# Not uvicorn's own --fd: that takes the socket for one of AF_UNIX, without TCP_NODELAY.
_SERVE = """
import socket, sys, uvicorn
config = uvicorn.Config(sys.argv[1], lifespan="off", http="h11", timeout_graceful_shutdown=5)
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[2]))])
"""


class Uvicorn(Server):
    """Serve an ASGI application; see `Server`."""

    name = "uvicorn"
    stop_signals = (signal.SIGINT,)

    def _command(self) -> list[str]:
        return [sys.executable, "-c", _SERVE, self.app, str(self._descriptor)]
