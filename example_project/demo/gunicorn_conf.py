"""The demo's server: four processes on a socket that the demo opened, and that die with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

wsgi_app = "example_project.wsgi"
bind = f"fd://{os.environ['EXAMPLE_LISTEN_FD']}"
workers = 4
worker_class = "gthread"
threads = 5
preload_app = True
graceful_timeout = 2
loglevel = "warning"
control_socket_disable = True

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, signum: signal.Signals) -> None:
    """Ask Linux to signal this process when its parent ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signum))
        if os.getppid() != parent:  # it ended before we could ask
            os.kill(os.getpid(), signum)


def on_starting(server: Any) -> None:
    end_with_parent(int(os.environ["EXAMPLE_DEMO_PID"]), signal.SIGTERM)


def post_fork(server: Any, worker: Any) -> None:
    end_with_parent(server.pid, signal.SIGKILL)
