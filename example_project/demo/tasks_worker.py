"""The worker of the demo, its broker, and a mail server that can be down."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from example_project.demo import children
from example_project.demo.server import CHECKOUT
from example_project.demo.stores import redis

START_SECONDS = 60.0
#: Names the file with a line for each mail, and the one with how often the server is still down.
MAILS, DOWN = "EXAMPLE_MAILS", "EXAMPLE_MAIL_DOWN"


class WorkerFailed(Exception):
    """The worker did not start, or ended by itself."""


class Worker:
    """A Celery worker with two processes, which can be killed; and what it has mailed."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "worker.log"
        self._mails = directory / "mails"
        self._down = directory / "mail-down"
        self._process: subprocess.Popen[bytes] | None = None
        self._offset = 0
        os.environ.update({MAILS: str(self._mails), DOWN: str(self._down)})

    def launch(self) -> None:
        """Start the worker, and do not wait for it."""
        self._offset = self._log.stat().st_size if self._log.exists() else 0
        self._process = children.start(
            [
                *(sys.executable, "-m", "celery", "--app", "example_project", "worker"),
                *("--concurrency", "2", "--loglevel", "INFO"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            directory=CHECKOUT,
            log=self._log,
        )

    def wait(self) -> None:
        """Return when the worker takes messages."""
        process = self._process
        assert process is not None
        deadline = time.monotonic() + START_SECONDS
        while b" ready." not in self._log.read_bytes()[self._offset :]:
            if process.poll() is not None or time.monotonic() > deadline:
                raise WorkerFailed(f"The worker did not start:\n{self._log.read_text()}")
            time.sleep(0.02)

    def crash(self) -> None:
        """Kill all of its processes at once, as a power cut would."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def refuse_mails(self, times: int) -> None:
        """Let the mail server be down for the next so many mails."""
        self._down.write_text(str(times))

    def refusals_left(self) -> int:
        """Return for how many mails it is still down."""
        return int(self._down.read_text())

    def mails(self, about: str) -> int:
        """Return how many mails with that in their subject were sent."""
        sent = self._mails.read_text().splitlines() if self._mails.exists() else []
        return sum(about in line for line in sent)

    def log(self, lines: int = 25) -> str:
        """Return the end of the worker's log."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def worker(directory: Path) -> Iterator[Worker]:
    """Run a broker of the demo's own, and give a worker on it that is yet to be started."""
    place = directory / "broker"
    place.mkdir()
    with redis.started(place) as broker:
        os.environ["EXAMPLE_BROKER_URL"] = broker.environ["EXAMPLE_REDIS_URL"]
        found = Worker(directory)
        try:
            yield found
        finally:
            found.crash()


class MailServer(BaseEmailBackend):
    """Writes a line per mail, unless it is down: ``EMAIL_BACKEND`` of the demo."""

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        down = Path(os.environ[DOWN])
        left = int(down.read_text()) if down.exists() else 0
        if left > 0:
            down.write_text(str(left - 1))
            raise ConnectionRefusedError("The mail server is down.")
        with Path(os.environ[MAILS]).open("a") as mails:
            for message in email_messages:
                mails.write(f"{message.subject}\n")
        return len(email_messages)
