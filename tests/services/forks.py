"""Forked children: of this process, and of one with Django ready, in 50 ms for two seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.services.processes import ROOT

if TYPE_CHECKING:
    from typing import Self

_SERVE = """
import json, os, sys, traceback
import django
django.setup()
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            exec(json.loads(line), {})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Forks:
    """
    Run programs, each in a process that is forked for it alone; a context manager.

    No connection and no thread is there at the fork. All of it ends with us: it reads what we say.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(program) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate()


def in_child(function: Callable[[], object]) -> int:
    """Call `function` in a forked child, for half a minute at most; return its exit code."""
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
def held(*mutexes: Any) -> Iterator[None]:
    """Let another thread hold these mutexes."""
    with ThreadPoolExecutor(1) as thread:
        for mutex in mutexes:
            thread.submit(mutex.acquire).result(60)
        try:
            yield
        finally:
            for mutex in mutexes:
                thread.submit(mutex.release).result(60)
