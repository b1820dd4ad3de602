"""How gunicorn serves the shop; the Procfile has the command."""

from __future__ import annotations

import os
from typing import Any

wsgi_app = "example_project.wsgi"
# Not to the whole network: the passwords stand in the README.
bind = f"{os.environ.get('EXAMPLE_BIND', '127.0.0.1')}:{os.environ.get('PORT', '8000')}"
workers = 2
worker_class = "gthread"
threads = 4
graceful_timeout = 3
control_socket_disable = True


def child_exit(server: Any, worker: Any) -> None:
    """Take the attempts of a worker that died out of the gauge of those in flight."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
