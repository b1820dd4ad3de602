"""Fingerprints: the SHA-256 that says whether two requests with one key ask for the same thing."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import hashlib
import hmac
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["VERSION", "canonical_json", "canonical_payload", "fingerprints"]

#: The version of the algorithm. It is the first byte of each fingerprint, so the record keeps it.
VERSION = 1


def fingerprints(parts: Sequence[bytes], secrets: Sequence[str | bytes] = ()) -> tuple[bytes, ...]:
    """
    Return the fingerprints of what is asked for, 32 bytes each, the one to store first.

    The parts are hashed with their lengths. With `secrets` (newest first) each one gives an HMAC,
    so that a stored fingerprint cannot be guessed from likely requests (R47). The plain hash comes
    last, to be compared and never stored: neither a rotation nor the first secret turns a retry
    into a mismatch.
    """
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    digests = [hmac.digest(_to_bytes(secret), message, "sha256") for secret in secrets]
    return tuple(_versioned(digest) for digest in (*digests, hashlib.sha256(message).digest()))


def canonical_json(text: bytes, exclude: Sequence[str] = ()) -> bytes | None:
    """
    Return JSON text in one form for all its spellings, or None where raw bytes must decide (R42).

    `exclude` names members that do not count by their paths, ``"client.sent_at"``; a path goes
    through each item of an array (R45).

    Member order, white space and escapes do not matter; numbers are kept as written. None stands
    for text that is not JSON, repeats a member's name, or nests too deeply.
    """
    try:
        value = json.loads(
            text.decode("utf-8"),
            parse_int=_number,
            parse_float=_number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_members,
        )
        for path in exclude:
            _remove(value, [_escaped(name) for name in path.split(".")])
        return _dump(value)
    except (ValueError, RecursionError):
        return None


def canonical_payload(payload: Any) -> bytes:
    """
    Return the canonical bytes of a call's payload: what ``run(payload=…)`` compares.

    JSON values, dataclasses, and the types that people put into them: Decimal, dates and times,
    UUID, bytes, enums, sets. Raises TypeError for anything else, naming its type.
    """
    return _dump(_tagged(payload))


def _remove(value: Any, path: list[str]) -> None:
    if isinstance(value, list):
        for item in value:
            _remove(item, path)
    elif isinstance(value, dict):
        if len(path) == 1:
            value.pop(path[0], None)
        else:
            _remove(value.get(path[0]), path[1:])


def _dump(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def _versioned(digest: bytes) -> bytes:
    return bytes((VERSION,)) + digest[1:]


def _to_bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret


# A number as written becomes {"#": "1.00"}; a member's name that starts with "#" gets another one,
# so nothing that a client sends can look like a number that it is not.


def _number(text: str) -> dict[str, str]:
    return {"#": text}


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = {_escaped(name): value for name, value in pairs}
    if len(members) != len(pairs):
        raise ValueError("a member's name is repeated")
    return members


def _escaped(name: str) -> str:
    return "#" + name if name.startswith("#") else name


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _tagged(value: Any) -> Any:
    """Return `value` in JSON's own types, where each other type carries its name."""
    match value:
        case enum.Enum():
            return _tagged(value.value)
        case None | bool() | str():
            return value
        case int() | float() | decimal.Decimal():
            return {"#": str(value)}
        case Mapping():
            names = [name if isinstance(name, str) else repr(_tagged(name)) for name in value]
            if len(set(names)) != len(names):
                raise TypeError("A payload has two members whose names look alike.")
            return {
                _escaped(name): _tagged(item)
                for name, item in zip(names, value.values(), strict=True)
            }
        case bytes() | bytearray() | memoryview():
            return {"#bytes": bytes(value).hex()}
        case list() | tuple():
            return [_tagged(item) for item in value]
        case set() | frozenset():
            return {"#set": sorted((_tagged(item) for item in value), key=_dump)}
        case datetime.datetime() | datetime.date() | datetime.time():
            return {"#time": value.isoformat()}
        case datetime.timedelta():
            return {"#timedelta": str(value)}
        case uuid.UUID():
            return {"#uuid": str(value)}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {field.name: _tagged(getattr(value, field.name)) for field in fields}
    raise TypeError(
        f"A payload of type {type(value).__name__} has no canonical form; give JSON values, or "
        f"the bytes that identify it."
    )
