"""Results as bytes and back: the codecs, and the versioned envelope around what they write."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import uuid
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from django_idempotency.exceptions.base import (
    IdempotencyError,
    ResultTooLarge,
    ResultUnavailable,
    StoreError,
)

__all__ = [
    "ENCRYPTED",
    "Codec",
    "JSONCodec",
    "is_encrypted",
    "is_unavailable",
    "pack",
    "unavailable",
    "unpack",
]

# The envelope: version, flags, length of the codec's id, the id, the payload.
_VERSION = 1
_ZLIB = 0x01
_UNAVAILABLE = 0x02
#: The payload is encrypted: see `codecs.encryption`.
ENCRYPTED = 0x04
_KNOWN_FLAGS = _ZLIB | _UNAVAILABLE | ENCRYPTED
_COMPRESS_FROM = 1024
#: Bytes that are always read, so that a lower max_result_bytes makes no such record unreadable.
_READABLE_BYTES = 1024 * 1024


class Codec(Protocol):
    """Encodes one kind of result as bytes, and decodes it."""

    # Properties, which plain attributes of a class satisfy; an attribute asks for ClassVar or not.
    @property
    def id(self) -> str:
        """Stored in the envelope, so that no other codec ever reads these bytes."""

    @property
    def exact(self) -> bool:
        """
        Does decoding give back what was encoded?

        If not, the first caller gets the decoded value too, so that a replay cannot be told from
        the first answer.
        """

    def encode(self, result: Any) -> bytes:
        """Return `result` as bytes; raise TypeError, naming the type, if it has no such form."""
        ...

    def decode(self, payload: bytes) -> Any:
        """Return the result that `encode` wrote."""
        ...


def check_codec(codec: Any) -> None:
    """Raise TypeError for what is no `Codec`: it could not keep the result of work that is done."""
    parts = [callable(getattr(codec, name, None)) for name in ("encode", "decode")]
    name = getattr(codec, "id", None)
    is_named = isinstance(name, str) and 0 < len(name.encode()) < 256
    if isinstance(codec, type) or not (all(parts) and is_named and hasattr(codec, "exact")):
        raise TypeError(
            f"codec must be an object with encode(), decode(), exact and an id of 1 to 255 bytes, "
            f"not {codec!r}."
        )


def pack(codec: Codec, result: Any, *, max_bytes: int) -> bytes:
    """
    Return `result` in an envelope, compressed if that makes it smaller.

    Raises ResultTooLarge if the encoded result has more than `max_bytes` bytes before compression,
    and the codec's own error for a result that it cannot encode.
    """
    payload = codec.encode(result)
    if len(payload) > max_bytes:
        raise ResultTooLarge(
            f"The result has {len(payload)} bytes, and max_result_bytes allows {max_bytes}."
        )
    flags = 0
    if len(payload) >= _COMPRESS_FROM:
        compressed = zlib.compress(payload, 1)
        if len(compressed) < len(payload):
            payload, flags = compressed, _ZLIB
    return _envelope(codec, flags, payload)


def is_encrypted(envelope: bytes | None) -> bool:
    """Whether this is an envelope that `codecs.encryption` opens."""
    if not isinstance(envelope, bytes) or len(envelope) < 3:
        return False
    version, flags = envelope[:2]
    return version == _VERSION and not flags & ~_KNOWN_FLAGS and bool(flags & ENCRYPTED)


def unavailable(codec: Codec) -> bytes:
    """Return the envelope of a completed operation whose result was not kept (R62)."""
    return _envelope(codec, _UNAVAILABLE, b"")


def is_unavailable(envelope: bytes) -> bool:
    """Return whether this is an envelope of `unavailable`."""
    return len(envelope) > 2 and bool(envelope[1] & _UNAVAILABLE)


def unpack(codec: Codec, envelope: bytes | None, *, max_bytes: int = 0) -> Any:
    """
    Return the result in an envelope.

    Stored bytes are not trusted (R95): no more than `max_bytes`, or 1 MiB, are read. Raises
    ResultUnavailable if the result was not kept, and StoreError for an envelope that is damaged,
    too large, encrypted, or written by a newer release or by another codec.
    """
    if not isinstance(envelope, bytes) or len(envelope) < 3:
        raise StoreError("The stored result is damaged: its envelope is cut short.")
    version, flags, length = envelope[:3]
    if version != _VERSION or flags & ~_KNOWN_FLAGS:
        raise StoreError(
            "The stored result was written by a newer release of django-idempotency; upgrade this "
            "process to read it."
        )
    name, payload = envelope[3 : 3 + length], envelope[3 + length :]
    if name != codec.id.encode():
        raise StoreError(
            f"The stored result was written by the codec {name.decode(errors='replace')!r}, not "
            f"by {codec.id!r}."
        )
    if flags & ENCRYPTED:
        raise StoreError(
            "The stored result is encrypted, and encryption_keys is empty: put its key back."
        )
    if flags & _UNAVAILABLE:
        raise ResultUnavailable
    most = max(max_bytes, _READABLE_BYTES)
    if flags & _ZLIB:
        payload = _inflated(payload, most)
    if len(payload) > most:
        raise StoreError(f"The stored result is damaged: it has more than {most} bytes.")
    try:
        return codec.decode(payload)
    except IdempotencyError:
        raise
    except Exception as error:  # a codec may raise anything for bytes that it did not write
        # As a ValueError, because the text of other errors may quote the result in the log (R79).
        damage = ValueError(f"The codec {codec.id!r} cannot decode it.")
        damage.__cause__ = error
        raise StoreError("The stored result is damaged: it cannot be decoded.") from damage


def _inflated(payload: bytes, max_bytes: int) -> bytes:
    """Return the inflated bytes, `max_bytes` plus one at most; raise StoreError."""
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(payload, max_bytes + 1)
    except zlib.error as error:
        raise StoreError("The stored result is damaged: it cannot be inflated.") from error
    if len(inflated) <= max_bytes and (not stream.eof or stream.unused_data):
        raise StoreError("The stored result is damaged: it is cut short.")
    return inflated


def _envelope(codec: Codec, flags: int, payload: bytes) -> bytes:
    name = codec.id.encode()
    return b"".join((bytes((_VERSION, flags, len(name))), name, payload))


class JSONCodec:
    """
    JSON that also keeps Decimal, dates, times, timedelta, UUID and bytes.

    The first caller, too, loses what JSON cannot express: a tuple comes back as a list.
    """

    id = "json"
    exact = False

    def encode(self, result: Any) -> bytes:
        """Return UTF-8 JSON text; raise TypeError for a type that it cannot express."""
        try:
            text = _encode(_plain(result))
        except RecursionError as error:
            raise TypeError("A result that nests too deeply cannot be kept as JSON.") from error
        except ValueError as error:  # an integer of more digits than Python writes
            raise TypeError(f"The result cannot be kept as JSON. {error}") from error
        return text.encode(errors="surrogatepass")

    def decode(self, payload: bytes) -> Any:
        """Return the value of what `encode` wrote."""
        return _decode(payload.decode(errors="surrogatepass"))


# A typed value is an object with the single member "#type"; real names that start with "#" get
# another one in front.
_TYPES: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "#datetime": (
        datetime.datetime,
        datetime.datetime.isoformat,
        datetime.datetime.fromisoformat,
    ),
    "#date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "#time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "#timedelta": (
        datetime.timedelta,
        lambda value: f"{value.days} {value.seconds} {value.microseconds}",
        lambda text: datetime.timedelta(*(int(part) for part in text.split())),
    ),
    "#decimal": (decimal.Decimal, str, decimal.Decimal),
    "#uuid": (uuid.UUID, str, uuid.UUID),
    "#bytes": (
        bytes,
        lambda value: base64.b64encode(value).decode("ascii"),
        lambda text: base64.b64decode(text, validate=True),
    ),
}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        plain = {}
        for name, item in value.items():
            if not isinstance(name, (str, int)):
                raise TypeError(
                    f"A result with a {type(name).__name__} as the name of a member cannot be "
                    f"kept as JSON."
                )
            text = name if isinstance(name, str) else json.dumps(name)
            plain["#" + text if text.startswith("#") else text] = _plain(item)
        if len(plain) != len(value):
            raise TypeError("A result with two members of one name cannot be kept as JSON.")
        return plain
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    for tag, (kind, write, _) in _TYPES.items():
        if isinstance(value, kind):
            return {tag: write(value)}
    raise TypeError(
        f"A result of type {type(value).__name__} cannot be kept as JSON. Return JSON values: an "
        f"id in the place of an object, for example."
    )


def _rich(members: dict[str, Any]) -> Any:
    if len(members) == 1:
        [(tag, text)] = members.items()
        if tag in _TYPES:
            return _TYPES[tag][2](text)
    return {name[1:] if name.startswith("##") else name: value for name, value in members.items()}


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_decode = json.JSONDecoder(object_hook=_rich).decode
