"""Forked children, and mutexes that other threads of the parent hold."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def in_child(function: Callable[[], object]) -> int:
    """Call `function` in a forked child; return the child's exit code."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def held(mutex: Any) -> Iterator[None]:
    """A mutex that another thread holds."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            taken.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert taken.wait(10)
        yield
    finally:
        over.set()
        thread.join(10)
