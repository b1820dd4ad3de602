"""An HTTP server that gives the answers of a list, one after the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

#: Answers that are none: the connection breaks, or nothing comes.
BROKEN, SILENT = 0, -1


class Answer(NamedTuple):
    """A status (or BROKEN, SILENT), header fields, and a body: bytes, or what is sent as JSON."""

    status: int
    fields: Mapping[str, str] = {}
    body: Any = b""


class Seen(NamedTuple):
    """A request as it came."""

    method: str
    key: str | None
    body: bytes


@dataclass
class Scripted:
    """Where the server is, and what it was sent."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)


@contextmanager
def scripted(answers: Sequence[tuple[Any, ...]]) -> Iterator[Scripted]:
    """Serve these answers; a body shorter than its Content-Length ends with the connection."""
    script, left, over = Scripted(), iter(answers), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.seen.append(Seen(self.command, self.headers["Idempotency-Key"], body))
            status, fields, answer = Answer(*next(left))
            if status == SILENT:
                over.wait(30)
            elif status != BROKEN:
                self.send_response(status)
                for name, value in fields.items():
                    self.send_header(name, value)
                self.end_headers()
                answered = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.wfile.write(answered)

        do_GET = do_POST

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield script
        finally:
            over.set()
            server.shutdown()
            thread.join()
