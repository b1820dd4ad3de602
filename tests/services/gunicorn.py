"""A gunicorn of our own: real worker processes behind a socket that the test opened."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.services.processes import children
from tests.services.servers import HOST, Server

__all__ = ["HOST", "Gunicorn"]


class Gunicorn(Server):
    """Serve a WSGI application; see `Server`."""

    name = "gunicorn"
    death_signal = signal.SIGQUIT
    stop_signals = (signal.SIGINT, signal.SIGQUIT)

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
        super().__init__(app, env=env, probe=probe)
        self.workers = workers
        self._arguments = [
            *("--workers", str(workers), "--threads", str(threads)),
            *("--worker-class", worker_class, "--timeout", str(timeout)),
            *("--graceful-timeout", "5", "--no-control-socket", "--worker-tmp-dir", _shared()),
            *options,
        ]

    def worker_pids(self) -> list[int]:
        """Process ids of the living workers."""
        return children(self.pid)

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the arbiter or one of its workers, and to nothing else."""
        if pid != self.pid and pid not in self.worker_pids():
            raise ValueError(f"{pid} is not one of ours")
        os.kill(pid, number)

    def close(self) -> None:
        """Stop the arbiter and its workers."""
        workers = self.worker_pids() if self.process is not None else []
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # a test may have stopped it
        super().close()
        for pid in workers:
            _end_orphan(pid)

    def _command(self, descriptor: int) -> list[str]:
        command = [sys.executable, "-m", "gunicorn", "--bind", f"fd://{descriptor}"]
        return [*command, *self._arguments, self.app]

    def _is_whole(self) -> bool:
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
