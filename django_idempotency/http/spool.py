"""Bodies that are too large for memory, hashed on their way into a temporary file (R43)."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import weakref
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.request import RawPostDataException

__all__ = ["is_declared_large", "is_large", "spool"]

_CHUNK = 64 * 1024


def is_declared_large(request: HttpRequest) -> bool:
    """Whether ``request.body`` would be refused for the size that the request declares."""
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    length = request.META.get("CONTENT_LENGTH") or ""
    return limit is not None and length.isdigit() and int(length) > limit


def is_large(request: HttpRequest) -> bool:
    """
    Whether the body is too large for ``request.body``.

    A body of unknown length, which comes in chunks, is spooled to find out.
    """
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if limit is None or hasattr(request, "_body"):
        return False
    if (request.META.get("CONTENT_LENGTH") or "").isdigit():
        return is_declared_large(request)
    if "HTTP_TRANSFER_ENCODING" not in request.META:
        return False
    spool(request)
    stream: Any = request._stream
    size: int = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return size > limit


def spool(request: HttpRequest) -> bytes:
    """
    Read the body into a temporary file, let the view read it from there; return its SHA-256.

    A body that ``request.body`` holds already stays in memory. Raises RawPostDataException if
    somebody has begun to read it in another way.
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
    file.seek(0)
    weakref.finalize(request, file.close)
    unread._stream, unread._read_started = file, False
    return digest.digest()
