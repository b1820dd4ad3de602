"""A stored result as an operator reads it: always text, whatever it holds."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from django.utils.translation import gettext as _

from django_idempotency.codecs import Codec, unpack
from django_idempotency.codecs.encryption import opened
from django_idempotency.conf import policy_for
from django_idempotency.exceptions import ResultUnavailable, StoreError
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.records import Record

__all__ = ["Answer", "answer_of", "codec_in"]


@dataclass(frozen=True)
class Answer:
    """A stored result; that of a view has a status and header fields."""

    #: The id of the codec that wrote it.
    codec: str
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    #: Why there is no body to read, as a sentence; empty if there is one.
    note: str = ""
    #: The same, if that is an error: the result is lost, or its key is.
    error: str = ""

    @property
    def text(self) -> str | None:
        """The body as text; None for one that is no text."""
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            return None


def codec_in(envelope: bytes) -> str:
    """Return the id of the codec that an envelope names; "damaged" for one that names none."""
    name = envelope[3 : 3 + envelope[2]].decode(errors="replace") if len(envelope) > 2 else ""
    return name if name.isascii() and name.isprintable() and name else "damaged"


def answer_of(alias: str, record: Record) -> Answer:
    """Return the stored result of a record, which must have one."""
    envelope = record.result or b""
    name, policy = codec_in(envelope), policy_for(alias)
    codec: Any = SnapshotCodec()
    if name != SnapshotCodec.id:
        codec = cast("Codec", SimpleNamespace(id=name, decode=bytes))
    try:
        envelope = opened(envelope, record.record_id, policy.encryption_keys) or b""
        result = unpack(codec, envelope, max_bytes=policy.max_result_bytes)
    except ResultUnavailable:
        return Answer(name, note=_("It was not kept."))
    except StoreError as error:
        return Answer(name, note=str(error), error=str(error))
    if name == SnapshotCodec.id:
        return Answer(name, result.status, result.headers, result.body)
    return Answer(name, body=result)
