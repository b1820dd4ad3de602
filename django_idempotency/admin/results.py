"""A stored result as the admin shows it: always text, whatever it holds (R80)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from django.utils.text import Truncator
from django.utils.translation import gettext as _

from django_idempotency.operators.answers import answer_of
from django_idempotency.records import Record

__all__ = ["Stored", "stored"]

#: How many characters of a body are on the page.
_SHOWN = 100_000


@dataclass(frozen=True)
class Stored:
    """A stored result: that of a view has a status and header fields."""

    codec: str
    status: int | None
    headers: tuple[tuple[str, str], ...]
    #: The body as text, JSON with a member to each line; None for what is no text.
    body: str | None
    #: What there is to say in place of a body: that it was not kept, its size and type, an error.
    note: str


def stored(alias: str, record: Record) -> Stored:
    """Return the stored result of a record, which must have one."""
    answer = answer_of(alias, record)
    kinds = (value for name, value in answer.headers if name.lower() == "content-type")
    kind, body, note = next(kinds, answer.codec), answer.text, answer.note
    if note:
        body = None
    elif body is None:
        note = _("%(size)d bytes, %(type)s") % {"size": len(answer.body), "type": kind}
    else:
        if "json" in kind:
            with suppress(ValueError, RecursionError):  # a view may call anything JSON
                body = _indented(body)
        body = Truncator(body).chars(_SHOWN)
    return Stored(answer.codec, answer.status, answer.headers, body, note)


def _indented(text: str) -> str:
    """
    Return JSON with a member to each line, and little more of it than is shown.

    Raises ValueError where that would change it: 1.10, or a name that comes twice.
    """
    pieces, size = [], 0
    value = json.loads(text, parse_float=_exact, object_pairs_hook=_unique)
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > _SHOWN:  # indentation makes a thousand times as much of what nests deeply
            break
    return "".join(pieces).encode(errors="backslashreplace").decode()  # half a surrogate pair


def _exact(text: str) -> float:
    value = float(text)
    if repr(value) != text:
        raise ValueError("This number would be shown as another.")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("A name comes twice.")
    return members
