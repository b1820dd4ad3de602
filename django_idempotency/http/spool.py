"""Bodies as streams: those too large for memory (R43), and those that others read first (R93)."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import HttpRequest
from django.http.request import RawPostDataException

_CHUNK = 64 * 1024


class PartialBody(BadRequest):
    """The body is shorter than its Content-Length."""


def declared_length(request: HttpRequest) -> int | None:
    """Return the length that the request gives for its body; None without a valid one."""
    try:
        return int(request.META.get("CONTENT_LENGTH") or "")
    except ValueError:
        return None


def refuse_part(size: int, length: int | None) -> None:
    """
    Raise PartialBody if `size` bytes are less than a body of the declared `length`.

    A connection that breaks off ends the body early, and WSGI servers hand on what they have. Cut
    off, ``amount=1250`` may ask for 12. It must not have the key: the whole request may follow.
    """
    if size < (length or 0):
        raise PartialBody("The body is shorter than its Content-Length. Send the request again.")


def is_large(request: HttpRequest, length: int | None) -> bool:
    """
    Whether the body, of the declared `length`, is too large for ``request.body``.

    A body of unknown length, in chunks or over HTTP/2, is spooled to find out. One whose length is
    no number counts as too large: ``request.body`` would be a ValueError.
    """
    if hasattr(request, "_body"):
        return False
    if length is None and request.META.get("CONTENT_LENGTH"):
        return True
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if limit is None:
        return False
    if length is not None:
        return length > limit
    if getattr(request, "_read_started", False):
        return False
    spool(request)
    stream: Any = request._stream
    size: int = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return size > limit


def spool(request: HttpRequest) -> bytes:
    """
    Read the body into a temporary file, let the view read it from there; return its SHA-256.

    A body that ``request.body`` already holds stays in memory. Raises RawPostDataException if other
    code has begun to read the body in another way.
    """
    unread: Any = request
    if hasattr(request, "_body"):
        unread._stream = io.BytesIO(request._body)
        return hashlib.sha256(request._body).digest()
    if getattr(request, "_read_started", False):
        raise RawPostDataException("The body was read before the guard could see it.")
    file = tempfile.SpooledTemporaryFile(max_size=settings.FILE_UPLOAD_MAX_MEMORY_SIZE)  # noqa: SIM115
    digest = hashlib.sha256()
    while chunk := request.read(_CHUNK):
        digest.update(chunk)
        file.write(chunk)
    weakref.finalize(request, file.close)
    refuse_part(file.tell(), declared_length(request))
    file.seek(0)
    unread._stream, unread._read_started = file, False
    hand_on(request)
    return digest.digest()


def hand_on(request: HttpRequest) -> None:
    """Give a view that reads ``wsgi.input`` past Django the body that was read from it here."""
    if "wsgi.input" in request.META:
        request.META["wsgi.input"] = request._stream


@contextmanager
def whole_body(request: HttpRequest) -> Iterator[None]:
    """Let parsers read the body in the block; raise PartialBody after it if that broke off."""
    unread: Any = request
    if unread._read_started:
        yield
        return
    stream = unread._stream = _Watched(unread._stream)
    yield
    while stream.read(_CHUNK):  # what no parser wanted
        pass
    refuse_part(stream.size, declared_length(request))


class _Watched:
    """A stream that counts the bytes that are read from it."""

    size = 0

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def read(self, *size: int) -> bytes:
        """Read from the stream."""
        return self._noted(self.stream.read(*size))

    def readline(self, *size: int) -> bytes:
        """Read a line from the stream."""
        return self._noted(self.stream.readline(*size))

    def close(self) -> None:
        """Close the stream: ``request.body`` does."""
        self.stream.close()

    def seekable(self) -> bool:
        """Return whether ``request.body`` may measure the stream before it reads any of it."""
        asked = getattr(self.stream, "seekable", None)  # SpooledTemporaryFile of Python 3.10
        return asked is not None and bool(asked())

    def seek(self, *place: int) -> int:
        """Seek in the stream: to its end, and back to its start."""
        found: int = self.stream.seek(*place)
        return found

    def _noted(self, read: bytes) -> bytes:
        self.size += len(read)
        return read


class _Tee(_Watched):
    """A stream that keeps the bytes that are read from it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.kept = io.BytesIO()

    def _noted(self, read: bytes) -> bytes:
        self.kept.write(read)
        return read


def tee(request: HttpRequest) -> None:
    """
    Keep the bytes that others read of the body from here on, for `read_back`; read nothing (R93).

    Does nothing for a body that is too large for ``request.body``, or that was read before.
    """
    unread: Any = request
    limit, length = settings.DATA_UPLOAD_MAX_MEMORY_SIZE, declared_length(request)
    refused = limit is not None and length is not None and length > limit
    if not unread._read_started and not refused:
        unread._stream = _Tee(unread._stream)


def read_back(request: HttpRequest) -> None:
    """Give the request its whole body again, which others have read since `tee`."""
    unread: Any = request
    stream = unread._stream
    if not isinstance(stream, _Tee):  # ``request.body`` has put its own in the place of it
        return
    if not unread._read_started:
        unread._stream = stream.stream
    else:
        position = stream.kept.tell()
        request.read()  # the rest
        unread._body = stream.kept.getvalue()
        refuse_part(len(unread._body), declared_length(request))
        unread._stream = io.BytesIO(unread._body)
        unread._stream.seek(position)
