"""A server of a test's own: started, waited for, stopped, killed and started again."""

from __future__ import annotations

import http.client
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from tests.services.processes import ROOT, descendants, describe, end, listens, spawn, wait_until

if TYPE_CHECKING:
    from typing import Self

HOST = "127.0.0.1"


class OwnServer(ABC):
    """
    A server on 127.0.0.1 with a directory of its own; a context manager.

    It dies with the thread that started it, so start it in the main thread. What it writes goes
    into a file of its directory. A start that fails leaves nothing behind.
    """

    name: ClassVar[str]
    start_seconds: ClassVar[float] = 120.0
    #: What ends it together with the thread that started it.
    death_signal: ClassVar[signal.Signals] = signal.SIGKILL
    #: What ends it in order, one after the other.
    stop_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM,)
    #: What it writes when another process was faster to take its port.
    port_taken: ClassVar[str] = ""
    #: It refuses to run as root: as nobody then.
    as_nobody: ClassVar[bool] = False
    #: A test that fails shows what it has written.
    telling: ClassVar[bool] = False

    #: Those that are running.
    running: ClassVar[WeakSet[OwnServer]] = WeakSet()

    def __init__(self, *, env: Mapping[str, str] | None = None) -> None:
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.env = dict(env or {})
        self._user = _nobody() if self.as_nobody else None
        self._directory: Path | None = None
        self._output = b""
        self._written_before = 0

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """Return the command that serves, in the foreground; its first word is a path."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return whether it takes clients."""

    def _prepare(self) -> None:  # noqa: B027
        """Write into the directory what the first start needs."""

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    @property
    def directory(self) -> Path:
        assert self._directory is not None, f"{self.name} was never started"
        return self._directory

    @property
    def output(self) -> str:
        if self._directory is not None and self._log.exists():
            self._output = self._log.read_bytes()
        return self._output.decode(errors="replace")

    def start(self) -> Self:
        """Start, on the same port and data as before if there were any; return when it answers."""
        try:
            for _ in range(5):
                self.launch()
                if self._is_up():
                    return self
                self.port = 0  # another process took it in between
            raise RuntimeError(f"{self.name} found no free port:\n{self.output}")
        except BaseException:
            self.close()
            raise

    def launch(self) -> None:
        """Start unless it runs, and do not wait until it answers."""
        if self.process is not None and self.process.poll() is None:
            return
        if self._directory is None:
            parent = _temporary(self._user)
            self._directory = Path(tempfile.mkdtemp(prefix=f"idempotency-{self.name}-", dir=parent))
            if self._user is not None:
                os.chown(self._directory, *self._user)
            self._prepare()
        self.port = self.port or free_port()
        self._written_before = len(self.output.encode())
        self.process = self._spawn()
        self.running.add(self)

    def stop(self) -> None:
        self._end(*self.stop_signals)

    def kill(self) -> None:
        self._end()

    def restart(self) -> Self:
        """Stop if it runs, and start on the same port with the same data."""
        self.stop()

        def is_up() -> bool:
            self.launch()
            return self._is_up()

        wait_until(is_up, seconds=self.start_seconds, what=f"port {self.port} free again")
        return self

    def close(self) -> None:
        self.stop()
        _ = self.output  # which is kept
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def _cwd(self) -> Path:
        return self.directory

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    def _spawn(self, *, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            given: dict[str, Any] = {
                "output": output,
                "env": self.env,
                "user": self._user,
                "cwd": self._cwd,
            }
            command, ends = self._command(), self.death_signal
            return spawn(command, death_signal=ends, pass_fds=pass_fds, **given)

    def _run(self, command: Sequence[str | Path]) -> None:
        with self._log.open("ab") as output:
            process = spawn(command, output=output, env=self.env, user=self._user, cwd=self._cwd)
        if code := process.wait(300):
            raise RuntimeError(f"{command[0]} failed with {code}:\n{self.output}")

    def _is_up(self) -> bool:
        process = self.process
        assert process is not None

        def settled() -> bool:
            if process.poll() is not None:
                return True
            # Another server may have taken the port, and answer.
            return self._answers() and (not self.port_taken or listens(self.pid, self.port))

        try:
            wait_until(settled, seconds=self.start_seconds, what=f"{self.name} to answer")
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{self.output}") from None
        if process.poll() is None:
            return True
        self.process = None
        if self.port_taken and self.port_taken in self._written:
            return False
        raise RuntimeError(f"{self.name} ended with {process.returncode}:\n{self.output}")

    @property
    def _written(self) -> str:
        return self.output.encode()[self._written_before :].decode(errors="replace")

    def _end(self, *signals: signal.Signals) -> None:
        """Send the signals one after the other, SIGKILL last, and leave no process of it behind."""
        if self.process is None:
            return
        below = {pid: describe(pid) for pid in descendants(self.process.pid)}
        self.process.send_signal(signal.SIGCONT)  # a test may have stopped it
        for pid in below:
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        end(self.process, *signals)
        self.process = None
        self.running.discard(self)
        for pid, described in below.items():
            if describe(pid) == described:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


class Server(OwnServer):
    """
    A server of HTTP, on a socket that is opened here and handed over: no port can be taken.

    `env` is added to our own environment. Any answer to GET `probe` counts, 404 and 500 too.
    """

    start_seconds = 120.0
    telling = True

    #: What is asked for, to see whether it answers.
    probe: ClassVar[str] = "/"

    def __init__(self, app: str, *, env: Mapping[str, str] | None = None) -> None:
        super().__init__(env={"PYTHONPATH": str(ROOT), **(env or {})})
        self.app = app
        self._descriptor = -1

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def _cwd(self) -> Path:
        return ROOT

    def _spawn(self, *, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
        with socket.create_server((HOST, 0), backlog=256) as listener:
            self.port, self._descriptor = listener.getsockname()[1], listener.fileno()
            # From here on only the server holds the socket: if it dies, clients are refused.
            return super()._spawn(pass_fds=[*pass_fds, self._descriptor])

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=self.start_seconds)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request("GET", self.probe, headers={"Connection": "close"})
            connection.getresponse().read()
            return True
        return False


def free_port() -> int:
    """
    A free port below the range that the kernel hands to clients, so that it stays ours.

    The tests' other processes do not draw it before this one ends: it has the number for UDP, which
    no server uses. So a server finds its port free when it starts again.
    """
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        mark, probe = socket.socket(type=socket.SOCK_DGRAM), socket.socket()
        with mark, probe, suppress(OSError):
            mark.bind((HOST, port))
            probe.bind((HOST, port))
            mark.detach()
            return port


def open_to_all(path: Path) -> bool:
    real = path.resolve()
    return real.stat().st_mode & 0o005 == 0o005 and all(
        folder.stat().st_mode & 0o001 for folder in real.parents
    )


def _nobody() -> tuple[int, int] | None:
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def _temporary(user: tuple[int, int] | None) -> str:
    """The temporary directory, or /tmp where the server's user cannot enter it."""
    directory = tempfile.gettempdir()
    return directory if user is None or open_to_all(Path(directory)) else "/tmp"
