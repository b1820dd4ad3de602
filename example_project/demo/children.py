"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, signum: signal.Signals) -> None:
    """Ask Linux to signal this process when its parent ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signum))
        if os.getppid() != parent:  # it ended before we could ask
            os.kill(os.getpid(), signum)


def start(command: Sequence[str | Path], *, directory: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a program that knows nothing of us, in `directory`; the first word is its path."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", __file__, str(os.getpid()), *map(str, command)],
            cwd=directory,
            env={**os.environ, "EXAMPLE_DEMO_PID": str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C comes to the demo alone, and the demo ends it
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End it in order; if that takes too long, at once."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":  # in the new process: become the program
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606
