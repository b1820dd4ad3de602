"""A stored result as the admin shows it: always text, whatever it holds (R80)."""

from __future__ import annotations

import json
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from django_idempotency.codecs import Codec, unpack
from django_idempotency.conf import policy_for
from django_idempotency.exceptions import ResultUnavailable, StoreError
from django_idempotency.http.snapshot import Snapshot, SnapshotCodec

__all__ = ["shown_result"]

#: How many characters of a body are on the page.
_SHOWN = 100_000


def shown_result(envelope: bytes) -> SafeString | str:
    """Return status, header fields and body of a response; of other results text, or the size."""
    name = envelope[3 : 3 + envelope[2]].decode(errors="replace") if len(envelope) > 2 else ""
    most = policy_for().max_result_bytes
    try:
        if name == SnapshotCodec.id:
            return _response(unpack(SnapshotCodec(), envelope, max_bytes=most))
        as_it_is = cast("Codec", SimpleNamespace(id=name, decode=bytes))
        return _block(unpack(as_it_is, envelope, max_bytes=most), name)
    except ResultUnavailable:
        return _("It was not kept.")
    except StoreError as error:
        return str(error)


def _response(snapshot: Snapshot) -> SafeString:
    fields = format_html_join("", "{}: {}\n", snapshot.headers)
    kind = next((value for name, value in snapshot.headers if name.lower() == "content-type"), "")
    head = format_html("<pre><strong>{}</strong>\n{}</pre>", snapshot.status, fields)
    return head + _block(snapshot.body, kind)


def _block(body: bytes, kind: str) -> SafeString:
    """Return a body as a block of text, or how many bytes of which type it is."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return format_html("<p>{} bytes, {}</p>", len(body), kind)
    if "json" in kind:
        with suppress(ValueError, RecursionError):  # a view may call anything JSON
            text = _indented(text)
    return format_html("<pre>{}</pre>", Truncator(text).chars(_SHOWN))


def _indented(text: str) -> str:
    """Return JSON with a member to each line, and little more of it than is shown."""
    pieces, size = [], 0
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
        pieces.append(piece)
        size += len(piece)
        if size > _SHOWN:  # indentation makes a thousand times as much of what nests deeply
            break
    return "".join(pieces).encode(errors="backslashreplace").decode()  # half a surrogate pair
