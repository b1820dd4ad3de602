"""What goes over the wire between a store and its server: commands out, answers back."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.services.proxy import Proxy


class Wiretap(Proxy):
    """A proxy that notes who speaks; a round trip is a request and the answer to it."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._spoken: list[tuple[str, bytes]] = []

    def forget(self) -> None:
        """Begin to count."""
        self._spoken = []

    @property
    def round_trips(self) -> int:
        """How often the server was asked, and answered, since `forget`."""
        speakers = [speaker for speaker, _ in self._spoken]
        turns = [b for a, b in zip(["", *speakers], speakers, strict=False) if a != b]
        assert turns == ["client", "server"] * (len(turns) // 2), turns
        return len(turns) // 2

    @property
    def sent(self) -> bytes:
        """All that clients have sent since `forget`."""
        return b"".join(data for speaker, data in self._spoken if speaker == "client")

    async def _requests(self, link: Any, reader: asyncio.StreamReader) -> None:
        await super()._requests(link, _Tapped(reader, "client", self))

    async def _answers(self, link: Any, reader: asyncio.StreamReader) -> None:
        await super()._answers(link, _Tapped(reader, "server", self))

    def note(self, speaker: str, data: bytes) -> None:
        self._spoken.append((speaker, data))


class _Tapped(asyncio.StreamReader):
    """A reader whose reads are noted."""

    def __init__(self, reader: asyncio.StreamReader, speaker: str, tap: Wiretap) -> None:
        self._reader = reader
        self._speaker = speaker
        self._tap = tap

    async def read(self, n: int = -1) -> bytes:
        data = await self._reader.read(n)
        if data:
            self._tap.note(self._speaker, data)
        return data
