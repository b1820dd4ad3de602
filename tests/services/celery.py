"""A Celery worker of our own: a real `celery worker` with its pool, on a broker of the test's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.services.processes import children, descendants, end, spawn, wait_until

START_SECONDS = 60.0


class CeleryWorker:
    """
    Run ``celery worker``; a context manager that returns when it takes messages.

    `env` is added to our own environment. With ``pool="prefork"`` the tasks run in children of it.
    """

    def __init__(
        self,
        app: str = "tests.acceptance.celery.app",
        *,
        env: Mapping[str, str] | None = None,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: str = "celery",
        options: Sequence[str] = (),
    ) -> None:
        self.pool = pool
        self.concurrency = concurrency
        self.process: subprocess.Popen[bytes] | None = None
        self._env = dict(env or {})
        self._output = b""
        self._file = tempfile.NamedTemporaryFile(prefix="idempotency-celery-")  # noqa: SIM115
        self._command = [
            *(sys.executable, "-m", "celery", "--app", app, "worker", "--pool", pool),
            *("--concurrency", str(concurrency), "--queues", queues, "--loglevel", "INFO"),
            # Nobody else is to be found, waited for, or told.
            *("--without-gossip", "--without-mingle", "--without-heartbeat", *options),
        ]

    @property
    def pid(self) -> int:
        """Process id of the process that takes the messages."""
        assert self.process is not None, "the worker is not running"
        return self.process.pid

    @property
    def output(self) -> str:
        """What it has written so far."""
        if not self._file.closed:
            self._output = Path(self._file.name).read_bytes()
        return self._output.decode(errors="replace")

    def pool_pids(self) -> list[int]:
        """Process ids of the pool's living processes."""
        return children(self.pid)

    def kill(self) -> None:
        """Kill it as the kernel does, and its pool with it."""
        assert self.process is not None, "the worker is not running"
        below = descendants(self.pid)
        end(self.process)
        for pid in below:
            _end_orphan(pid)

    def launch(self) -> CeleryWorker:
        """Start it, and do not wait until it takes messages."""
        self.process = spawn(self._command, output=self._file.file, env=self._env)
        return self

    def start(self) -> CeleryWorker:
        """Start it unless it was launched, and return when it takes messages."""
        if self.process is None:
            self.launch()
        try:
            wait_until(self._is_ready, seconds=START_SECONDS, what="the worker to be ready")
        except (TimeoutError, RuntimeError) as error:
            self.close()
            raise RuntimeError(f"{error}\n{self.output}") from error
        return self

    def close(self) -> None:
        """End it and its pool at once; whatever they are at is not waited for."""
        if self.process is not None:
            self.kill()
            self.process = None
        _ = self.output
        self._file.close()

    def __enter__(self) -> CeleryWorker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is not None:
            print(f"\n--- output of the worker ---\n{self.output}")

    def _is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"the worker ended with {self.process.returncode}")
        return " ready." in self.output


def _end_orphan(pid: int) -> None:
    """Kill a pool process that outlived its worker; on Linux Celery sees to that itself."""
    with suppress(OSError):
        if b"celery" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
