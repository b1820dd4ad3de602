"""Child processes that die with the runner, and finding those that did not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]

# Set by the pytest plugin; every process that a test starts inherits it, orphans included.
RUN_VARIABLE = "IDEMPOTENCY_TEST_RUN"

# Runs in the child, between fork and exec, as a program of its own: `preexec_fn` is unsafe (and a
# warning since Python 3.12) in a process with threads. The death signal is asked for after the
# change of user, because changing the user clears it.
_LAUNCH = """
import ctypes, os, sys
parent, uid, gid, number = map(int, sys.argv[1:5])
if uid >= 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
os.execv(sys.argv[5], sys.argv[5:])
"""


def spawn(
    command: Sequence[str | Path],
    *,
    output: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    user: tuple[int, int] | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    pass_fds: Sequence[int] = (),
    cwd: Path = ROOT,
) -> subprocess.Popen[bytes]:
    """
    Start a process that gets `death_signal` when the thread that called this ends.

    `user` is a (uid, gid) to run as. `env` is added to our own environment. The first word of
    `command` must be a path.
    """
    uid, gid = user if user is not None else (-1, -1)
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), str(uid), str(gid)]
    return subprocess.Popen(
        [*launch, str(int(death_signal)), *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        env={**os.environ, **(env or {})},
        pass_fds=pass_fds,
        cwd=cwd,
    )


def end(process: subprocess.Popen[bytes], *signals: signal.Signals, seconds: float = 10) -> int:
    """Send the signals one after the other, SIGKILL last, until the process has ended."""
    for number in (*signals, signal.SIGKILL):
        if process.poll() is not None:
            break
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    return process.wait()


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Poll `condition` until it holds; TimeoutError with `what` when the time is up."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return sorted(child for child, parent in _parents() if parent == pid)


def descendants(pid: int) -> set[int]:
    below: dict[int, list[int]] = {}
    for child, parent in _parents():
        below.setdefault(parent, []).append(child)
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in below.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def marked(*variables: str) -> set[int]:
    """Process ids whose environment was started with all of these `NAME=value` entries."""
    wanted = {variable.encode() for variable in variables}
    found = set()
    for pid, _ in _parents():
        with suppress(OSError):
            if wanted <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                found.add(pid)
    return found


def listens(pid: int, port: int) -> bool:
    """Whether a process has a socket that listens on the port; True where there is no /proc."""
    tables = [path for path in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for path in tables for line in path.read_text().splitlines()[1:]]
    local, listening = f":{port:04X}", "0A"
    inodes = {row[9] for row in rows if row[1].endswith(local) and row[3] == listening}
    opened = set()
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            opened.add(os.readlink(entry))
    return not tables or any(f"socket:[{inode}]" in opened for inode in inodes)


def describe(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return f"{pid}: {b' '.join(words).decode(errors='replace').strip()[:200]}"
    return str(pid)


def _parents() -> Iterator[tuple[int, int]]:
    """Pairs (pid, parent's pid) of all living processes; empty where there is no /proc."""
    proc = Path("/proc")
    if not proc.is_dir():
        return
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name in parentheses may hold anything, a ")" included.
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if state != "Z":
                    yield int(entry.name), int(parent)
