"""Start and crash the server of the demo."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from example_project.demo.client import Client

CHECKOUT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0


class ServerFailed(Exception):
    """The server did not start, or ended by itself."""


class Server:
    """
    gunicorn, on a port that is ours from the first moment to the last.

    The socket is bound here and handed over, so nobody can take the port between choosing it and
    starting the server, nor while the server is down.
    """

    def __init__(
        self, directory: Path, environ: dict[str, str], *, name: str = "server", port: int = 0
    ) -> None:
        self._log = directory / f"{name}.log"
        self._environ = environ
        try:
            self._socket = socket.create_server(("127.0.0.1", port), backlog=128)
        except OSError:  # it is taken: any other will do
            self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._process: subprocess.Popen[bytes] | None = None
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.crash()  # in order would take seconds, and nothing is kept
        self._socket.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and return when it answers."""
        self.launch()
        self.wait_until_it_answers()

    def launch(self) -> None:
        """Start the server, and do not wait for it."""
        fd = self._socket.fileno()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gunicorn"),
                    *("--config", "python:example_project.demo.gunicorn_conf"),
                ],
                cwd=CHECKOUT,
                env={
                    **self._environ,
                    "EXAMPLE_LISTEN_FD": str(fd),
                    "EXAMPLE_DEMO_PID": str(os.getpid()),
                },
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C comes to the demo alone, and the demo ends it
            )

    def wait_until_it_answers(self) -> None:
        process = self._process
        assert process is not None
        client = Client(self.port, timeout=1)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerFailed(f"The server ended with exit code {process.returncode}.")
            # The port accepts connections before anybody serves them: wait for an answer.
            with contextlib.suppress(OSError):
                client.get("/checkout/")
                return
        raise ServerFailed(f"The server did not answer within {START_SECONDS:.0f} s.")

    def crash(self) -> None:
        """Kill all of its processes at once, as a power cut would; safe to call at any time."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait(self) -> None:
        """Return when the server ends by itself."""
        if self._process is not None:
            self._process.wait()

    def log(self, lines: int = 25) -> str:
        """Return the end of the server's log."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
