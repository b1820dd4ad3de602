"""A Celery worker of our own: a real `celery worker` with its pool, on a broker of the test's."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.services.processes import ROOT, children
from tests.services.servers import OwnServer


class CeleryWorker(OwnServer):
    """
    ``celery worker``, which has started when it takes messages.

    `env` is added to our own environment. With ``pool="prefork"`` the tasks run in children of it.
    Whatever they do is not waited for when it ends.
    """

    name = "celery"
    start_seconds = 120.0
    stop_signals = ()
    telling = True

    def __init__(
        self,
        app: str = "tests.acceptance.celery.stage",
        *,
        env: Mapping[str, str] | None = None,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: str = "celery",
    ) -> None:
        super().__init__(env=env)
        self.pool = pool
        self.concurrency = concurrency
        self._arguments = [
            *(sys.executable, "-m", "celery", "--app", app, "worker", "--pool", pool),
            *("--concurrency", str(concurrency), "--queues", queues, "--loglevel", "INFO"),
            # Nobody else is to be found, waited for, or told.
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            *("--hostname", f"worker-{uuid.uuid4().hex[:8]}"),
        ]

    def pool_pids(self) -> list[int]:
        return children(self.pid)

    @property
    def _cwd(self) -> Path:
        return ROOT

    def _command(self) -> list[str]:
        return self._arguments

    def _answers(self) -> bool:
        return " ready." in self._written
