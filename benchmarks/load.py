"""A load generator: connections that stay open, each of which sends when it was answered."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

__all__ = ["payment", "send_all"]

SECONDS = 60.0


class _Connection:
    """A connection, and what came in of the answer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.sent_at = 0.0

    def send(self, request: bytes) -> None:
        self.received = b""
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """Return the status once the answer is whole."""
        more = self.socket.recv(65536)
        if not more:
            raise RuntimeError("the server has closed a connection")
        self.received += more
        head, _, body = self.received.partition(b"\r\n\r\n")
        if len(head) == len(self.received):
            return None
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        whole = len(body) >= int(length) if length else body.endswith(b"0\r\n\r\n")
        return int(head.split(b" ", 2)[1]) if whole else None


def payment(key: str) -> bytes:
    """Return the request for a payment with this key, which is written down with it."""
    body = json.dumps({"reference": "order-1234", "amount": 1250, "key": key}).encode()
    head = (
        "POST /payments/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nIdempotency-Key: {key}\r\n\r\n"
    )
    return head.encode() + body


def send_all(port: int, requests: Sequence[bytes], connections: int = 16) -> dict[str, Any]:
    """
    Send the requests over so many connections; each takes the next one when it was answered.

    Returns how many were done (201) per second, the microseconds of each request, and how many
    were refused.
    """
    waiting, refused = deque(requests), 0
    times: list[float] = []
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        opened = [_Connection(port) for _ in range(min(connections, len(requests)))]
        for connection in opened:
            stack.callback(connection.socket.close)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        began = time.perf_counter()
        for connection in opened:
            connection.send(waiting.popleft())
        while len(times) < len(requests):
            ready = selector.select(SECONDS)
            if not ready:
                raise TimeoutError(f"no answer within {SECONDS:g} s")
            for chosen, _ in ready:
                connection = chosen.data
                if (status := connection.receive()) is None:
                    continue
                times.append((time.perf_counter() - connection.sent_at) * 1e6)
                refused += status != 201
                if waiting:
                    connection.send(waiting.popleft())
        seconds = time.perf_counter() - began
    done = len(requests) - refused
    return {"per_second": done / seconds, "us": times, "refused": refused}
