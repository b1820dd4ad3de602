"""A gunicorn of our own: real worker processes behind a socket that the test opened."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from tests.services.processes import children, wait_until
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
    ) -> None:
        super().__init__(app, env=env)
        self.workers = workers
        self._arguments = [
            *("--workers", str(workers), "--threads", str(threads)),
            *("--worker-class", worker_class, "--timeout", str(timeout)),
            *("--graceful-timeout", "5", "--no-control-socket", "--worker-tmp-dir", _shared()),
            *options,
        ]

    def worker_pids(self) -> list[int]:
        return children(self.pid)

    def is_whole(self) -> bool:
        return len(self.worker_pids()) >= self.workers

    def kill(self, pid: int | None = None, number: signal.Signals = signal.SIGKILL) -> None:
        """
        Kill it all, or send a signal to the arbiter or one of its workers alone.

        Who is killed dies when the kernel gets round to it; this returns when it has.
        """
        if pid is None:
            super().kill()
        elif pid == self.pid or pid in self.worker_pids():
            os.kill(pid, number)
            if number == signal.SIGKILL:
                wait_until(
                    lambda: pid not in self.worker_pids(),
                    seconds=self.start_seconds,
                    what=f"the death of {pid}",
                )
        else:
            raise ValueError(f"{pid} is not one of ours")

    def kill_workers(self) -> None:
        """Kill all workers; return when the arbiter has replaced them."""
        killed = set(self.worker_pids())
        self._send(killed, signal.SIGKILL)
        wait_until(
            lambda: len(set(self.worker_pids()) - killed) >= self.workers,
            seconds=self.start_seconds,
            what="new workers",
        )

    def wake_workers(self) -> None:
        """Let all workers go on that were stopped; return when none is missing."""
        self._send(self.worker_pids(), signal.SIGCONT)
        wait_until(self.is_whole, seconds=self.start_seconds, what="all workers")

    def _send(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):  # it may have died since it was looked for
                os.kill(pid, number)

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "gunicorn", "--bind", f"fd://{self._descriptor}"]
        return [*command, *self._arguments, self.app]

    def _answers(self) -> bool:
        return self.is_whole() and super()._answers()


def _shared() -> str:
    """Memory rather than disk for the workers' heartbeat: a slow disk looks like a hung worker."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
