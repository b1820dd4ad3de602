"""A uvicorn of our own: one real server process behind a socket that the test opened."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.services.processes import ROOT, end, spawn, wait_until

HOST = "127.0.0.1"
START_SECONDS = 60.0

# Not uvicorn's own --fd: that takes the socket for one of AF_UNIX, without TCP_NODELAY.
_SERVE = """
import socket, sys, uvicorn
config = uvicorn.Config(sys.argv[1], lifespan="off", http="h11", timeout_graceful_shutdown=5)
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[2]))])
"""


class Uvicorn:
    """
    Serve an ASGI application; a context manager that returns when the first answer came.

    The listening socket is opened here and handed over, so no port can be taken in between. `env`
    is added to our own environment. Any answer to GET `probe` counts, 404 and 500 too.
    """

    def __init__(
        self,
        app: str = "example_project.asgi:application",
        *,
        env: Mapping[str, str] | None = None,
        probe: str = "/",
    ) -> None:
        self.app = app
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._env = {"PYTHONPATH": str(ROOT), **(env or {})}
        self._probe = probe
        self._output = b""
        self._file = tempfile.NamedTemporaryFile(prefix="idempotency-uvicorn-")  # noqa: SIM115

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self.process is not None, "uvicorn is not running"
        return self.process.pid

    @property
    def output(self) -> str:
        """What it has written so far."""
        if not self._file.closed:
            self._output = Path(self._file.name).read_bytes()
        return self._output.decode(errors="replace")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the server a signal."""
        os.kill(self.pid, number)

    def start(self) -> Uvicorn:
        """Start, and return when it answers."""
        with socket.create_server((HOST, 0), backlog=256) as listener:
            self.port = listener.getsockname()[1]
            self.process = spawn(
                [sys.executable, "-c", _SERVE, self.app, str(listener.fileno())],
                output=self._file.file,
                env=self._env,
                pass_fds=[listener.fileno()],
            )
        # From here on only uvicorn holds the socket: if it dies, clients are refused.
        try:
            wait_until(self._serves, seconds=START_SECONDS, what=f"{self.app} to answer")
        except (TimeoutError, RuntimeError) as error:
            self.close()
            raise RuntimeError(f"{error}\n{self.output}") from error
        return self

    def close(self) -> None:
        """Stop it."""
        if self.process is not None:
            end(self.process, signal.SIGINT)
            self.process = None
        _ = self.output
        self._file.close()

    def __enter__(self) -> Uvicorn:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is not None:
            print(f"\n--- output of uvicorn {self.app} ---\n{self.output}")

    def _serves(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"uvicorn ended with {self.process.returncode}")
        connection = http.client.HTTPConnection(HOST, self.port, timeout=START_SECONDS)
        try:
            connection.request("GET", self._probe, headers={"Connection": "close"})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True
