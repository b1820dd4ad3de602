"""The served views in this process: their settings, and where they are told to go on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings

from django_idempotency.claims import ClaimRequest
from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.records import Record
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing.http_contract import ASGITransport, Transport, WSGITransport
from tests.app.contract import DIRECTORY_VARIABLE
from tests.app.contract import settings as served

__all__ = ["IN_MEMORY", "in_process"]


class CannotComplete(MemoryStore):
    """No completion can be written."""

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        raise StoreError


class Down(MemoryStore):
    """Cannot be reached."""

    def claim(self, request: ClaimRequest) -> Lease | Record:
        raise StoreError(unreachable=True)


#: What IDEMPOTENCY is where no record is in a database.
IN_MEMORY: Mapping[str, Any] = {
    "default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"},
    "incomplete": {"BACKEND": f"{__name__}.CannotComplete"},
    "down": {"BACKEND": f"{__name__}.Down"},
}
#: What it is on the test's database; one that is down must not be connected to in a test.
ON_DATABASE: Mapping[str, Any] = {**served.IDEMPOTENCY, "down": IN_MEMORY["down"]}


@contextmanager
def in_process(
    directory: Path, server: str, idempotency: Mapping[str, Any] = ON_DATABASE
) -> Iterator[Transport]:
    """Serve the views to calls by this transport, as "wsgi" or "asgi"."""
    with (
        mock.patch.dict(os.environ, {DIRECTORY_VARIABLE: str(directory)}),
        override_settings(
            ROOT_URLCONF=served.ROOT_URLCONF,
            MIDDLEWARE=served.MIDDLEWARE,
            IDEMPOTENCY=dict(idempotency),
        ),
    ):
        yield WSGITransport(WSGIHandler()) if server == "wsgi" else ASGITransport(ASGIHandler())
