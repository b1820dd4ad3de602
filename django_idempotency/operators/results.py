"""The result that an operator gives a record, in the form that its adapter replays."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse

from django_idempotency import keys
from django_idempotency.codecs import Codec, JSONCodec, pack
from django_idempotency.conf import policy_for
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.records import Record

__all__ = ["kind_of", "packed_answer", "packed_value"]


def kind_of(record: Record) -> str | None:
    """
    Return which adapter made the record: "http", "task" or "call".

    Its id tells, which is computed from the kind, too. None for a scope that is not stored whole.
    """
    ids = keys.record_ids(record.scope, record.key)
    return dict(zip(ids, keys.KINDS, strict=True)).get(record.record_id)


def packed_answer(
    alias: str, status: int, body: bytes | str = b"", content_type: str = "application/json"
) -> bytes:
    """
    Return the result of a view; text is encoded in the charset of its content type.

    Raises ValueError for no status of an answer, or for text that its charset lacks, LookupError
    for no charset, and ResultTooLarge.
    """
    if not 200 <= status <= 599:
        raise ValueError("The status of an answer is a number from 200 to 599.")
    answer = HttpResponse(body, status=status, content_type=content_type)
    return _packed(alias, SnapshotCodec(max_bytes=policy_for(alias).max_result_bytes), answer)


def packed_value(alias: str, record: Record, value: Any) -> bytes:
    """
    Return the result of a task, or of a call or consumer with the default codec, made of a value.

    Raises TypeError for a value that the codec cannot keep, LookupError for a task that this
    process does not know, and ResultTooLarge.
    """
    return _packed(alias, _codec_of(record), value)


def _codec_of(record: Record) -> Codec:
    if kind_of(record) != "task":
        return JSONCodec()
    name = record.operation
    try:
        from django_idempotency.contrib.celery.guarded import codec_of
    except ImportError as error:
        raise LookupError(f"Celery is not installed here, and {name} is a task.") from error
    if (codec := codec_of(name)) is None:
        raise LookupError(f"This project has no guarded task with the operation {name}.")
    return codec


def _packed(alias: str, codec: Codec, result: Any) -> bytes:
    return pack(codec, result, max_bytes=policy_for(alias).max_result_bytes)
