"""
The journal of a record: what its steps have noted.

Entries are appended and never rewritten. An entry is its kind, the lengths of name and payload
(``>BHI``), the name in UTF-8, and the payload: the envelope of a result, or nothing.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from django_idempotency.exceptions.base import StoreError

#: Characters that the name of a step may have.
LONGEST_NAME = 100

_HEAD = struct.Struct(">BHI")
#: The kinds of an entry: a result, a call that is about to be made, one that was not made.
_RESULT, _INTENT, _WITHDRAWN = 1, 2, 3


class Journal(NamedTuple):
    """What a journal says."""

    #: The payloads of the steps that were noted, by name, in the order of the notes.
    results: dict[str, bytes]
    #: The calls of which nobody knows whether they were made, in the order of their intents.
    uncertain: tuple[str, ...]


def entry(name: str, payload: bytes) -> bytes:
    """Return the entry of a step's result."""
    return _entry(_RESULT, name, payload)


def intent(name: str) -> bytes:
    """Return the entry of a call that is about to be made."""
    return _entry(_INTENT, name)


def withdrawn(name: str) -> bytes:
    """Return the entry that takes the intent of a call back: it was not made."""
    return _entry(_WITHDRAWN, name)


def read(journal: bytes | None) -> Journal:
    """
    Return what a journal says.

    The first result of a name stands, whatever follows it. Raises StoreError for a journal that is
    damaged or has entries of a newer release (S16).
    """
    results: dict[str, bytes] = {}
    intents: dict[str, None] = {}
    written, begins = b"" if journal is None else bytes(journal), 0
    while begins < len(written):
        try:
            kind, name_length, length = _HEAD.unpack_from(written, begins)
            named = begins + _HEAD.size
            name = written[named : named + name_length].decode()
        except (struct.error, UnicodeDecodeError):
            raise _damaged() from None
        begins = named + name_length + length
        if not name or len(written) < begins:
            raise _damaged()
        if kind == _RESULT:
            results.setdefault(name, written[begins - length : begins])
        elif kind == _INTENT:
            intents[name] = None
        elif kind == _WITHDRAWN:
            intents.pop(name, None)
        else:
            raise _damaged()
    return Journal(results, tuple(name for name in intents if name not in results))


def _entry(kind: int, name: str, payload: bytes = b"") -> bytes:
    named = name.encode()
    return _HEAD.pack(kind, len(named), len(payload)) + named + payload


def _damaged() -> StoreError:
    return StoreError(
        "The journal of the record's steps is damaged, or was written by a newer release; no step "
        "is run."
    )
