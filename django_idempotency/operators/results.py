"""The result that an operator gives to a record, or to a call of its steps."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext as _

from django_idempotency.codecs import Codec, JSONCodec, pack
from django_idempotency.conf import policy_for, stores
from django_idempotency.exceptions import ResultTooLarge, StoreError
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.operators.facts import Reading


def given_result(
    about: Reading,
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
    if not is_chosen and (others := _keyed_otherwise(about)):
        said = _(
            "The stores %(names)s share this record and have other ENCRYPTION_KEYS. Name that of "
            "its work: idempotency_%(action)s --store."
        )
        action = "complete" if step is None else "resume"
        raise ValueError(
            said % {"names": ", ".join([about.store.alias, *others]), "action": action}
        )
    policy = policy_for(about.store.alias)
    most = policy.max_result_bytes
    try:
        if status is None:
            parsed = _json(value)
            if step is None:
                return pack(_codec_of(about), parsed, max_bytes=most)
            most = policy.max_steps_bytes
            return pack(JSONCodec(), _typed(value), max_bytes=most)
        if not 200 <= status <= 599:
            raise ValueError("The status of an answer is a number from 200 to 599.")
        _check_body(body, content_type)
        answer = HttpResponse(body, status=status, content_type=content_type)
        return pack(SnapshotCodec(max_bytes=most), answer, max_bytes=most)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error
    except ResultTooLarge as error:
        said = _("It has more bytes than max_steps_bytes allows, which are %(most)d.")
        raise ValueError(str(error) if step is None else said % {"most": most}) from error


def _check_body(body: bytes | str, content_type: str) -> None:
    """Raise ValueError for JSON that no client could read: a completed record stays as it is."""
    media_type = content_type.partition(";")[0].strip().lower()
    if not media_type:
        raise ValueError("An answer has a content type.")
    if body and (media_type == "application/json" or media_type.endswith("+json")):
        try:
            json.loads(body)
        except ValueError as error:
            raise ValueError(_("This is no JSON: %(error)s") % {"error": error}) from error


def _typed(value: str) -> Any:
    """Return the value of JSON text in the form of a step's result; raise ValueError."""
    try:
        return JSONCodec().decode(value.encode())
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        said = _("A typed value in it cannot be read. Write it as results are shown: %(example)s.")
        raise ValueError(said % {"example": '{"#decimal": "12.50"}'}) from error


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise ValueError for one with two members of a name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(_("It has two members of one name."))
    return found


def _number(text: str) -> float:
    """Return a number of JSON; raise ValueError for one that Python alone knows."""
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(_("%(text)s is no number of JSON.") % {"text": text})


#: Returns the value of JSON text; raises ValueError, also for what Python alone would read.
_json = json.JSONDecoder(
    object_pairs_hook=members, parse_constant=_number, parse_float=_number
).decode


def _keyed_otherwise(about: Reading) -> list[str]:
    """Return the other aliases that have this very record, and other encryption keys."""
    store, record, sharing = about.store, about.record, []
    keyed = policy_for(store.alias).encryption_keys
    for other in stores:
        if policy_for(other).encryption_keys != keyed and stores[other].using == store.using:
            with suppress(StoreError):  # one that is down is another one
                same = stores[other].get(record.record_id)
                if same is not None and (same.epoch, same.token) == (record.epoch, record.token):
                    sharing.append(other)
    return sharing


def _codec_of(about: Reading) -> Codec:
    """Return the codec of a task, or else the default one; raise LookupError."""
    if about.kind != "task":
        return JSONCodec()
    name = about.record.operation
    try:
        from django_idempotency.contrib.celery.guarded import codec_of
    except ImportError as error:
        raise LookupError(f"Celery is not installed here, and {name} is a task.") from error
    if (codec := codec_of(name)) is None:
        raise LookupError(f"This project has no guarded task with the operation {name}.")
    return codec
