"""A stored result: as an operator reads it, and as one gives it to a record."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from django.http import HttpResponse
from django.utils.translation import gettext as _

from django_idempotency import keys
from django_idempotency.codecs import Codec, JSONCodec, pack, unpack
from django_idempotency.codecs.encryption import opened
from django_idempotency.conf import policy_for, stores
from django_idempotency.exceptions import ResultTooLarge, ResultUnavailable, StoreError
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.records import Record


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

    @property
    def content_type(self) -> str:
        """The Content-Type of a view's answer; the codec of another result."""
        kinds = (value for name, value in self.headers if name.lower() == "content-type")
        return next(kinds, self.codec)


def codec_in(envelope: bytes) -> str:
    """Return the id of the codec that an envelope names; "damaged" for one that names none."""
    name = envelope[3 : 3 + envelope[2]].decode(errors="replace") if len(envelope) > 2 else ""
    return name if name.isascii() and name.isprintable() and name else "damaged"


def answer_of(alias: str, record: Record) -> Answer:
    """Return the stored result of a record, which must have one."""
    return _answer_in(alias, record, record.result or b"")


def result_of_step(alias: str, record: Record, name: str, payload: bytes) -> Answer:
    """Return the result of a step that the journal of a record has under this name."""
    return _answer_in(alias, record, payload, name)


def _answer_in(alias: str, record: Record, envelope: bytes, step: str = "") -> Answer:
    name, policy = codec_in(envelope), policy_for(alias)
    codec: Any = SnapshotCodec()
    if name != SnapshotCodec.id:
        codec = cast("Codec", SimpleNamespace(id=name, decode=bytes))
    sealed_for = keys.of_step(record.record_id, step) if step else record.record_id
    try:
        envelope = opened(envelope, sealed_for, policy.encryption_keys) or b""
        most = policy.max_steps_bytes if step else policy.max_result_bytes
        result = unpack(codec, envelope, max_bytes=most)
    except ResultUnavailable:
        return Answer(name, note=_("It was not kept."))
    except StoreError as error:
        return Answer(name, note=str(error), error=str(error))
    if name == SnapshotCodec.id:
        return Answer(name, result.status, result.headers, result.body)
    return Answer(name, body=result)


def kind_of(record: Record) -> str | None:
    """
    Return which adapter made the record: "http", "task" or "call".

    Its id tells, which is computed from the kind, too. None for a scope that is not stored whole.
    """
    ids = keys.record_ids(record.scope, record.key)
    return dict(zip(ids, keys.KINDS, strict=True)).get(record.record_id)


def given_result(
    alias: str,
    record: Record,
    *,
    status: int | None = None,
    body: bytes | str = b"",
    content_type: str = "application/json",
    value: str = "",
    step: str | None = None,
    is_chosen: bool = False,
) -> bytes:
    """
    Return the result that an operator gives a record, in the form of the adapter that made it.

    With a `status` it is the answer of a view; text is encoded in the charset of its content type.
    Otherwise it is a `value`, as JSON text, of a task, or of a call or consumer with the default
    codec. With a `step` it is the `value` of a call of the record's, in the form in which results
    are shown: ``{"#decimal": "1.50"}``. Raises ValueError, with the reason, for one that cannot be
    kept, and unless the alias `is_chosen` for a record in two stores with other encryption keys.
    """
    if not is_chosen and (others := _keyed_otherwise(alias, record)):
        said = _(
            "The stores %(names)s share this record and have other ENCRYPTION_KEYS. Name that of "
            "its work: idempotency_%(action)s --store."
        )
        action = "complete" if step is None else "resume"
        raise ValueError(said % {"names": ", ".join([alias, *others]), "action": action})
    policy = policy_for(alias)
    most = policy.max_result_bytes
    try:
        if status is None:
            parsed = _json(value)
            if step is None:
                return pack(_codec_of(record), parsed, max_bytes=most)
            most = policy.max_steps_bytes
            return pack(JSONCodec(), _typed(value), max_bytes=most)
        if not 200 <= status <= 599:
            raise ValueError("The status of an answer is a number from 200 to 599.")
        answer = HttpResponse(body, status=status, content_type=content_type)
        return pack(SnapshotCodec(max_bytes=most), answer, max_bytes=most)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error
    except ResultTooLarge as error:
        said = _("It has more bytes than max_steps_bytes allows, which are %(most)d.")
        raise ValueError(str(error) if step is None else said % {"most": most}) from error


def _typed(value: str) -> Any:
    """Return the value of JSON text in the form of a step's result; raise ValueError."""
    try:
        return JSONCodec().decode(value.encode())
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        said = _("A typed value in it cannot be read. Write it as results are shown: %(example)s.")
        raise ValueError(said % {"example": '{"#decimal": "12.50"}'}) from error


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise ValueError for one with two members of a name."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError(_("It has two members of one name."))
    return members


def _number(text: str) -> float:
    """Return a number of JSON; raise ValueError for one that Python alone knows."""
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(_("%(text)s is no number of JSON.") % {"text": text})


#: Returns the value of JSON text; raises ValueError, also for what Python alone would read.
_json = json.JSONDecoder(
    object_pairs_hook=_members, parse_constant=_number, parse_float=_number
).decode


def _keyed_otherwise(alias: str, record: Record) -> list[str]:
    """Return the other aliases that have this very record, and other encryption keys."""
    keyed, using = policy_for(alias).encryption_keys, stores[alias].using
    sharing = []
    for other in stores:
        if policy_for(other).encryption_keys != keyed and stores[other].using == using:
            with suppress(StoreError):  # one that is down is another one
                same = stores[other].get(record.record_id)
                if same is not None and (same.epoch, same.token) == (record.epoch, record.token):
                    sharing.append(other)
    return sharing


def _codec_of(record: Record) -> Codec:
    """Return the codec of a task, or else the default one; raise LookupError."""
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
