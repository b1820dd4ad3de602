"""TLS in front of a server that has none: a certificate of our own, and who speaks for it."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"


def self_signed(directory: Path, *, until: datetime) -> Path:
    """Write a certificate for 127.0.0.1 and its key into one file; return where."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - timedelta(days=2))
        .not_valid_after(until)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = directory / "certificate.pem"
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path


class TLSTerminator:
    """Takes TLS connections and passes what is in them on; a context manager with a thread."""

    def __init__(self, url: str, certificate: Path) -> None:
        self.certificate = certificate
        self.port = 0
        self._url = urlsplit(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._links: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"rediss://{HOST}:{self.port}{self._url.path}"

    def __enter__(self) -> TLSTerminator:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        self._server = await asyncio.start_server(self._accept, HOST, 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        self._server.close()
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        target = await asyncio.open_connection(self._url.hostname, self._url.port)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(_pump(reader, target[1]), _pump(target[0], writer))
        finally:
            writer.transport.abort()
            target[1].transport.abort()
            self._links.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()
