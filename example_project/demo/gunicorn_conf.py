"""The demo's server: four processes on a socket that the demo opened, and that die with it."""

from __future__ import annotations

import os
import signal
from typing import Any

from example_project.demo.children import end_with_parent

wsgi_app = "example_project.wsgi"
bind = f"fd://{os.environ['EXAMPLE_LISTEN_FD']}"
workers = 4
worker_class = "gthread"
threads = 5
preload_app = True
graceful_timeout = 2
loglevel = "warning"
control_socket_disable = True


def on_starting(server: Any) -> None:
    end_with_parent(int(os.environ["EXAMPLE_DEMO_PID"]), signal.SIGTERM)


def post_fork(server: Any, worker: Any) -> None:
    end_with_parent(server.pid, signal.SIGKILL)
