"""Points at which a payment stops until the demo lets it go on, or kills its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

from django.http import HttpRequest, HttpResponse

#: Names the folder of the points. A payment stops at a point while a pipe of its name is there.
FOLDER = "EXAMPLE_PAUSES"
#: In the server, before the view; the row is written; its transaction is committed; an order is
#: marked as paid, and that is not committed.
ARRIVED, WRITTEN, COMMITTED, MARKED = "arrived", "written", "committed", "marked"
SECONDS = 60.0


class NotThere(Exception):
    """A payment did not get to its point."""


def stop(point: str) -> None:
    """In the shop: write our process id into the pipe, and wait for the end of the pause."""
    pipe = Path(os.environ.get(FOLDER, os.devnull), point)
    if pipe.is_fifo():
        with pipe.with_suffix(".held").open() as held:
            pipe.write_text(f"{os.getpid()}\n")
            fcntl.flock(held, fcntl.LOCK_SH)


@contextlib.contextmanager
def pause(point: str) -> Iterator[Callable[[], int]]:
    """In the demo: give a function that waits for the next payment, and returns its process id."""
    pipe = Path(os.environ[FOLDER], point)
    with pipe.with_suffix(".held").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        os.mkfifo(pipe)
        # Read and write: neither side waits for the other to open it.
        with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as lines:

            def arrival() -> int:
                if not select.select([lines], [], [], SECONDS)[0]:
                    raise NotThere(f"No payment was {point} within {SECONDS:.0f} s.")
                return int(lines.readline())

            try:
                yield arrival
            finally:
                pipe.unlink()


class Arrival:
    """The innermost middleware: whatever stands before the view has let the payment in."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            stop(ARRIVED)
        return self._get_response(request)
