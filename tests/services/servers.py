"""A real server behind a socket that the test opened: what gunicorn and uvicorn have in common."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from tests.services.processes import ROOT, end, spawn, wait_until

if TYPE_CHECKING:
    from typing import Self

HOST = "127.0.0.1"
START_SECONDS = 60.0


class Server(ABC):
    """
    Serve an application; a context manager that returns when the first answer came.

    The listening socket is opened here and handed over, so no port can be taken in between. `env`
    is added to our own environment. Any answer to GET `probe` counts, 404 and 500 too.
    """

    name: ClassVar[str]
    #: What ends it together with the thread that started it.
    death_signal: ClassVar[signal.Signals] = signal.SIGKILL
    #: What ends it in order, one after the other.
    stop_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT,)

    def __init__(self, app: str, *, env: Mapping[str, str] | None, probe: str) -> None:
        self.app = app
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._env = {"PYTHONPATH": str(ROOT), **(env or {})}
        self._probe = probe
        self._output = b""
        self._file = tempfile.NamedTemporaryFile(prefix=f"idempotency-{self.name}-")  # noqa: SIM115

    @abstractmethod
    def _command(self, descriptor: int) -> list[str]:
        """Return the command that serves on the socket with this file descriptor."""

    def _is_whole(self) -> bool:
        """Whether all of its processes are there."""
        return True

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the process that was started."""
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    @property
    def output(self) -> str:
        """What it has written so far."""
        if not self._file.closed:
            self._output = Path(self._file.name).read_bytes()
        return self._output.decode(errors="replace")

    def start(self) -> Self:
        """Start, and return when it answers and all of its processes are there."""
        with socket.create_server((HOST, 0), backlog=256) as listener:
            self.port = listener.getsockname()[1]
            self.process = spawn(
                self._command(listener.fileno()),
                output=self._file.file,
                env=self._env,
                death_signal=self.death_signal,
                pass_fds=[listener.fileno()],
            )
        # From here on only the server holds the socket: if it dies, clients are refused.
        try:
            wait_until(self._serves, seconds=START_SECONDS, what=f"{self.app} to answer")
        except (TimeoutError, RuntimeError) as error:
            self.close()
            raise RuntimeError(f"{error}\n{self.output}") from error
        return self

    def close(self) -> None:
        """Stop it."""
        if self.process is not None:
            end(self.process, *self.stop_signals)
            self.process = None
        _ = self.output
        self._file.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is not None:
            print(f"\n--- output of {self.name} {self.app} ---\n{self.output}")

    def _serves(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}")
        connection = http.client.HTTPConnection(HOST, self.port, timeout=START_SECONDS)
        try:
            connection.request("GET", self._probe, headers={"Connection": "close"})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return self._is_whole()
