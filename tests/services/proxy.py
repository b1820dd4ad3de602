"""A TCP proxy that breaks connections on purpose, at a place the test names."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

HOST = "127.0.0.1"
CHUNK = 65_536
ANSWER_SECONDS = 10.0

Place = Literal["before", "after"]
Speaker = Literal["client", "server"]


class Proxy:
    """
    Stand between a client and a server; a context manager.

    It runs in a thread with a loop of its own, so a test may block on the client. Connect to
    `host` and `port`. Everything passes until a test says otherwise. With `tls` clients speak TLS.
    """

    host = HOST

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.spoken: list[tuple[Speaker, bytes]] = []  # what was said through it, and by whom
        self._tls = tls
        self.fired = threading.Event()  # the pattern of cut_before or cut_after was seen
        self._target = (host, port)
        self._mode: Literal["pass", "refuse", "swallow"] = "pass"
        self._delay = 0.0
        self._cut: tuple[bytes, Place] | None = None
        self._every = 1
        self._met = 0  # how often the pattern was seen
        self.dropped = 0
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="test-proxy", daemon=True)
        self._server: asyncio.Server | None = None

    def heal(self) -> None:
        """Let everything pass again; connections already cut stay cut."""
        self._mode, self._delay, self._cut, self._every = "pass", 0.0, None, 1
        self.fired.clear()

    def refuse(self) -> None:
        """Drop each new connection at once; open ones go on."""
        self._mode = "refuse"

    def swallow(self) -> None:
        """Keep connections open and let nothing pass, either way."""
        self._mode = "swallow"

    def delay(self, seconds: float) -> None:
        """Hold each chunk back, either way."""
        self._delay = seconds

    def cut_before(self, pattern: bytes, place: Place = "before") -> None:
        """Cut, once, the connection on which the client sends `pattern`: the server misses it."""
        self.fired.clear()
        self._cut, self._every = (pattern, place), 1

    def drop_every(self, number: int, pattern: bytes) -> None:
        """Do as `cut_after` to every third, say, `pattern`; until it heals."""
        self.cut_after(pattern)
        self._every, self._met = number, 0

    def lead_to(self, port: int) -> None:
        """Lead new connections to another port of the same host."""
        self._target = (self._target[0], port)

    def cut_after(self, pattern: bytes) -> None:
        """
        Cut, once, the connection on which the client sends `pattern`, when the server has answered.

        The answer never reaches the client: the server has done it, and the client cannot know.
        """
        self.cut_before(pattern, "after")

    def cut(self) -> None:
        """Drop every open connection now."""
        self._call(self._abort_all())

    @property
    def sent(self) -> bytes:
        """All that clients have sent since `spoken` was cleared."""
        return b"".join(data for speaker, data in self.spoken if speaker == "client")

    @property
    def round_trips(self) -> int:
        """How often the server was asked, and answered, since `spoken` was cleared."""
        speakers = [speaker for speaker, _ in self.spoken]
        turns = [b for a, b in zip(["", *speakers], speakers, strict=False) if a != b]
        assert turns == ["client", "server"] * (len(turns) // 2), turns
        return len(turns) // 2

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._abort_all()
        await self._server.wait_closed()

    async def _abort_all(self) -> None:
        for link in (links := list(self._links)):
            link.abort()
        await asyncio.gather(*(link.done.wait() for link in links))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._mode == "refuse":
                raise ConnectionRefusedError
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, server_writer)
        self._links.add(link)
        try:
            with suppress(OSError):
                pumps = (self._requests(link, reader), self._answers(link, server_reader))
                tasks = [asyncio.ensure_future(pump) for pump in pumps]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await link.close()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            link.abort()
            self._links.discard(link)
            link.done.set()

    async def _requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        """Client to server, looking for the pattern; a pattern may come in two chunks."""
        seen = b""
        while data := await reader.read(CHUNK):
            self.spoken.append(("client", data))
            await asyncio.sleep(self._delay)
            if self._mode == "swallow":
                continue
            seen += data
            if self._cut is not None and self._cut[0] in seen:
                seen = b""
                self._met += 1
                if self._met % self._every == 0:
                    await self._cut_now(link, data)
                    return
            seen = seen[-256:] if self._cut is not None else b""
            link.server.write(data)
            await link.server.drain()

    async def _cut_now(self, link: _Link, data: bytes) -> None:
        assert self._cut is not None
        place = self._cut[1]
        self._cut = self._cut if self._every > 1 else None
        self.dropped += 1
        if place == "after":
            link.muted = True
            link.server.write(data)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(link.answered.wait(), ANSWER_SECONDS)
        link.abort()
        self.fired.set()

    async def _answers(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            self.spoken.append(("server", data))
            await asyncio.sleep(self._delay)
            if link.muted:
                link.answered.set()
            elif self._mode != "swallow":
                link.client.write(data)
                await link.client.drain()


@dataclass(eq=False)
class _Link:
    """One client's connection and the server's beside it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    muted: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()

    async def close(self) -> None:
        for writer in (self.client, self.server):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
