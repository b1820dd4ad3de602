"""A gunicorn of our own: real worker processes behind a socket that the test opened."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.services.processes import ROOT, children, end, spawn, wait_until

HOST = "127.0.0.1"
START_SECONDS = 60.0


class Gunicorn:
    """
    Serve a WSGI application; a context manager that returns when the first answer came.

    The listening socket is opened here and handed over, so no port can be taken in between. `env`
    is added to our own environment. Any answer to GET `probe` counts, 404 and 500 too.
    """

    def __init__(
        self,
        app: str = "example_project.wsgi:application",
        *,
        env: Mapping[str, str] | None = None,
        workers: int = 4,
        threads: int = 8,
        worker_class: str = "gthread",
        timeout: int = 30,
        options: Sequence[str] = (),
        probe: str = "/",
    ) -> None:
        self.app = app
        self.workers = workers
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._env = {"PYTHONPATH": str(ROOT), **(env or {})}
        self._probe = probe
        self._output = b""
        self._file = tempfile.NamedTemporaryFile(prefix="idempotency-gunicorn-")  # noqa: SIM115
        self._arguments = [
            *("--workers", str(workers), "--threads", str(threads)),
            *("--worker-class", worker_class, "--timeout", str(timeout)),
            *("--graceful-timeout", "5", "--no-control-socket", "--worker-tmp-dir", _shared()),
            *options,
        ]

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the arbiter."""
        assert self.process is not None, "gunicorn is not running"
        return self.process.pid

    @property
    def output(self) -> str:
        """What it has written so far."""
        if not self._file.closed:
            self._output = Path(self._file.name).read_bytes()
        return self._output.decode(errors="replace")

    def worker_pids(self) -> list[int]:
        """Process ids of the living workers."""
        return children(self.pid)

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the arbiter or one of its workers, and to nothing else."""
        if pid != self.pid and pid not in self.worker_pids():
            raise ValueError(f"{pid} is not one of ours")
        os.kill(pid, number)

    def start(self) -> Gunicorn:
        """Start, and return when it answers and all workers have been forked."""
        with socket.create_server((HOST, 0), backlog=256) as listener:
            self.port = listener.getsockname()[1]
            command = [sys.executable, "-m", "gunicorn", "--bind", f"fd://{listener.fileno()}"]
            self.process = spawn(
                [*command, *self._arguments, self.app],
                output=self._file.file,
                env=self._env,
                death_signal=signal.SIGQUIT,
                pass_fds=[listener.fileno()],
            )
        # From here on only gunicorn holds the socket: if it dies, clients are refused.
        try:
            wait_until(self._serves, seconds=START_SECONDS, what=f"{self.app} to answer")
        except (TimeoutError, RuntimeError) as error:
            self.close()
            raise RuntimeError(f"{error}\n{self.output}") from error
        return self

    def close(self) -> None:
        """Stop the arbiter and its workers."""
        if self.process is not None:
            workers = self.worker_pids()
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)  # a test may have stopped it
            end(self.process, signal.SIGINT, signal.SIGQUIT)
            self.process = None
            for pid in workers:
                _end_orphan(pid)
        _ = self.output
        self._file.close()

    def __enter__(self) -> Gunicorn:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is not None:
            print(f"\n--- output of gunicorn {self.app} ---\n{self.output}")

    def _serves(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"gunicorn ended with {self.process.returncode}")
        connection = http.client.HTTPConnection(HOST, self.port, timeout=START_SECONDS)
        try:
            connection.request("GET", self._probe, headers={"Connection": "close"})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return len(self.worker_pids()) >= self.workers


def _end_orphan(pid: int) -> None:
    """End a worker that outlived its arbiter (a killed arbiter cannot end its own)."""
    commands = Path(f"/proc/{pid}/cmdline")
    with suppress(OSError):
        if b"gunicorn" in commands.read_bytes():
            os.kill(pid, signal.SIGKILL)


def _shared() -> str:
    """Memory rather than disk for the workers' heartbeat: a slow disk looks like a hung worker."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
