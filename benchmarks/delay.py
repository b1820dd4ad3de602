"""A TCP proxy that takes time, in a process of its own: a network between a client and a server."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

__all__ = ["Delay"]

HOST = "127.0.0.1"


class Delay:
    """
    A server of this machine that seems to be a network away; a context manager.

    Each way takes half of `seconds`. `trips` counts how often a client spoke after the server had.
    """

    def __init__(self, port: int, *, seconds: float) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.host, self.port = self._listener.getsockname()
        self._trips: Any = multiprocessing.Value("q", 0)
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve,
            args=(self._listener, (HOST, port), seconds / 2, self._trips),
            daemon=True,
        )

    @property
    def trips(self) -> int:
        """Round trips since the start."""
        return int(self._trips.value)

    def __enter__(self) -> Delay:
        self._process.start()
        self._listener.close()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.join()


def _serve(listener: socket.socket, server: tuple[str, int], seconds: float, trips: Any) -> None:
    while True:
        client, _ = listener.accept()
        there = socket.create_connection(server)
        speaker = [there]

        def said(
            by: socket.socket, client: Any = client, speaker: list[socket.socket] = speaker
        ) -> None:
            if by is client and speaker[0] is not client:
                trips.value += 1
            speaker[0] = by

        for ends in ((client, there), (there, client)):
            for end in ends:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass, args=(*ends, seconds, said), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket, seconds: float, said: Any) -> None:
    """Hand on what comes, each piece later; end both with the first that ends."""
    with suppress(OSError):
        while data := source.recv(65_536):
            said(source)
            time.sleep(seconds)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
