"""
The tutorial, typed into an empty folder: ``python -m tests.tutorial``; `make dist` has a wheel.

Each block of docs/tutorial.md is what the line above it says: a file, the end of one, or, in a
comment, what runs in another terminal. Any other has commands. The lines below a command are what
it prints; "…" stands for anything.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.pages import DOCS, ROOT
from tests.services.redis import RedisServer
from tests.services.servers import free_port

PAGE = DOCS / "tutorial.md"
#: What a reader of this page has done already, where the package comes from the checkout.
INSTALLS = ("python -m venv", "source ", "pip install")
PATIENCE = 120


class Wrong(Exception):
    """The tutorial does not do what it says."""


class Terminal:
    """A command that goes on while others are typed, and what it prints."""

    def __init__(self, command: str, folder: Path, env: dict[str, str]) -> None:
        self._command = command
        self._log = folder.parent / f"{time.monotonic_ns()}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", f"exec env {command}"],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, expected: str) -> None:
        """Wait until it has printed what is expected, or, if that is nothing, serves its port."""
        port = int(self._command.split()[-1]) if not expected else 0
        until = time.monotonic() + PATIENCE
        while not (_matches(expected, self.printed) if expected else _serves(port)):
            if time.monotonic() > until or (self._process.poll() is not None and not expected):
                raise Wrong(f"$ {self._command}\n{self.printed}")
            time.sleep(0.05)

    @property
    def printed(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        """Press Ctrl-C."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(PATIENCE)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)


def follow(folder: Path, *, links: Path | None = None) -> list[str]:
    """
    Do what the page says in an empty folder, and return the commands.

    `links` is a folder with the wheel that pip is to install; without it, nothing is installed, and
    the package is the checkout's.
    """
    ports = {port: str(free_port()) for port in ("8000", "8001")}
    page = re.sub("|".join(ports), lambda port: ports[port[0]], PAGE.read_text())
    page = page.replace("/path/to/checkout", "django-idempotency")  # from `links`
    typed: list[str] = []
    with ExitStack() as stack:
        broker = stack.enter_context(RedisServer())
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DJANGO_", "EXAMPLE_", "IDEMPOTENCY_", "PYTHON"))
        }
        env |= {"BROKER_URL": broker.url, "PYTHONUNBUFFERED": "1"}
        if links is None:
            env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "PYTHONPATH": str(ROOT)}
        else:
            env |= {"PATH": f"{folder / '.venv/bin'}:{env['PATH']}", "PIP_FIND_LINKS": str(links)}
        terminals: dict[str, Terminal] = {}
        stack.callback(lambda: [terminal.stop() for terminal in terminals.values()])
        for kind, name, text in _steps(page):
            if kind in ("file", "end"):
                with (folder / name).open("w" if kind == "file" else "a") as file:
                    file.write(text)
            elif kind == "stop":
                terminals.pop(name).stop()
            else:
                for command, expected in _commands(text):
                    if links is None and command.startswith(INSTALLS):
                        continue
                    typed.append(command)
                    if kind == "terminal":
                        terminals[name] = Terminal(command, folder, env)
                        terminals[name].wait_for(expected)
                    else:
                        _type(command, expected, folder, env)
    return typed


def _steps(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield what is to be done: a kind, a name, and the text of the block."""
    kind, name = "commands", ""
    comment, file, block = (
        r"<!-- (terminal|stop): (\S+) -->",
        r"^(At the end of )?`(\S+)`:$",
        r"^```(\w+)\n(.*?)\n```$",
    )
    for match in re.finditer(f"{comment}|{file}|{block}", page, re.DOTALL | re.MULTILINE):
        if match[1] == "stop":
            yield "stop", match[2], ""
        elif match[1]:
            kind, name = match[1], match[2]
        elif match[4]:
            kind, name = "end" if match[3] else "file", match[4]
        else:
            if (match[5] == "console") is (kind in ("file", "end")):
                raise Wrong(f"What is to be done with this block? {match[6]}")
            yield kind, name, match[6] + "\n"
            kind, name = "commands", ""


def _commands(block: str) -> Iterator[tuple[str, str]]:
    for part in block.split("$ ")[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected.strip()


def _type(command: str, expected: str, folder: Path, env: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout.replace("\r", "")
    if done.returncode != 0 or not _matches(expected, said):
        raise Wrong(f"$ {command}\n{said}{done.stderr}\n({done.returncode}), not\n{expected}")


def _matches(expected: str, said: str) -> bool:
    pattern = ".*".join(re.escape(part.strip("\n")) for part in expected.split("…"))
    return re.search(pattern, said, re.DOTALL) is not None


def _serves(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def main() -> int:
    """Follow the page, and print how long it took."""
    links = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="idempotency-tutorial-") as directory:
        folder = Path(directory) / "bank"
        folder.mkdir()
        typed = follow(folder, links=links)
    seconds = time.monotonic() - started
    print(f"The tutorial came out right: {len(typed)} commands, {seconds:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
