"""
The journal of a record: what its steps have noted.

Entries are appended and never rewritten. An entry is its kind, the lengths of name and payload
(``>BHI``), the name in UTF-8, and the payload: the envelope of the result.
"""

from __future__ import annotations

import struct

from django_idempotency.exceptions.base import StoreError

__all__ = ["LONGEST_NAME", "entry", "read"]

#: Characters that the name of a step may have.
LONGEST_NAME = 100

_HEAD = struct.Struct(">BHI")
#: The kind of an entry: a result. There is no other one yet.
_RESULT = 1


def entry(name: str, payload: bytes) -> bytes:
    """Return the entry of a step's result."""
    named = name.encode()
    return _HEAD.pack(_RESULT, len(named), len(payload)) + named + payload


def read(journal: bytes | None) -> dict[str, bytes]:
    """
    Return the payloads of the steps that were noted, by name, in the order of the notes.

    The first result of a name stands, whatever follows it. Raises StoreError for a journal that is
    damaged or has entries of a newer release (S16).
    """
    found: dict[str, bytes] = {}
    left = b"" if journal is None else bytes(journal)
    while left:
        try:
            kind, name_length, length = _HEAD.unpack_from(left)
            ends = _HEAD.size + name_length
            name = left[_HEAD.size : ends].decode()
        except (struct.error, UnicodeDecodeError):
            raise _damaged() from None
        if kind != _RESULT or not name or len(left) < ends + length:
            raise _damaged()
        found.setdefault(name, left[ends : ends + length])
        left = left[ends + length :]
    return found


def _damaged() -> StoreError:
    return StoreError(
        "The journal of the record's steps is damaged, or was written by a newer release; no step "
        "is run."
    )
