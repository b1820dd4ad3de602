"""Fingerprints: keyed hashes that say whether two requests with one key ask for the same thing."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import hmac
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from django_idempotency.options import Secret

__all__ = ["VERSION", "Fingerprint", "canonical_json", "canonical_payload"]

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode

#: The version of the algorithm: the first byte of each fingerprint.
VERSION = 2

_ID = slice(1, 4)
_SALT = b"django_idempotency.fingerprint"
#: White space around JSON text (RFC 8259, section 2).
_SPACE = " \t\n\r"


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of a request, in each form in which a record may hold it (R47)."""

    #: The SHA-256 of all parts, without a secret, from which keys are derived. Never stored.
    digest: bytes = dataclasses.field(repr=False)
    #: One for each secret, newest first; the first one is stored.
    forms: tuple[bytes, ...] = dataclasses.field(repr=False)

    @classmethod
    def of(cls, parts: Sequence[bytes], secrets: Sequence[Secret]) -> Fingerprint:
        """
        Return the fingerprint of `parts`, which are hashed with their lengths.

        Each of `secrets`, newest first, gives a form of 32 bytes: the version, the id of the key
        that is derived from the secret, and the first 28 bytes of the digest's HMAC.
        """
        # Each after its length: ``("a", "bc")`` and ``("ab", "c")`` differ.
        prefixed = b"".join([len(part).to_bytes(8, "big") + part for part in parts])
        value = hashlib.sha256(prefixed).digest()
        forms = []
        for secret in secrets:
            head, inner, outer = _key(secret)
            inner, outer = inner.copy(), outer.copy()
            inner.update(value)
            outer.update(inner.digest())
            forms.append(head + outer.digest()[:28])
        return cls(value, tuple(forms))

    def lacks_key_of(self, stored: bytes) -> bool:
        """Return whether `stored` was made with a secret that is gone, so it cannot be compared."""
        return stored[0] == VERSION and stored[_ID] not in [form[_ID] for form in self.forms]


def canonical_json(text: bytes, exclude: Sequence[str] = ()) -> bytes | None:
    """
    Return JSON text in one form for all its spellings, or None where raw bytes must decide (R42).

    `exclude` names members that do not count by their paths, ``"client.sent_at"``; a path goes
    through each item of an array (R45).

    Member order, white space and escapes do not matter; numbers are kept as written. None stands
    for text that is not JSON, repeats a member's name, or nests too deeply.
    """
    number = _Numbers().__getitem__
    try:
        decoder = json.JSONDecoder(
            parse_int=number,
            parse_float=number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_members,
        )
        decoded = text.decode("utf-8").strip(_SPACE)
        value, end = decoder.raw_decode(decoded)
        if end != len(decoded):
            return None
        del decoded  # it may be large, and its canonical form is as large again
        for path in exclude:
            _remove(value, [_escaped(name) for name in path.split(".")])
        return _encode(value).encode("ascii")
    except (ValueError, RecursionError):
        return None


def canonical_payload(payload: Any) -> bytes:
    """
    Return the canonical bytes of a call's payload: what ``run(payload=…)`` compares.

    JSON values, dataclasses, and the types that people put into them: Decimal, dates and times,
    UUID, bytes, enums, sets. Raises TypeError for anything else, naming its type, and for what
    contains itself or nests too deeply.
    """
    try:
        return _dump(_tagged(payload))
    except RecursionError:
        raise TypeError(
            "A payload that contains itself, or nests too deeply, has no canonical form."
        ) from None


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
    return _encode(value).encode("ascii")


@functools.lru_cache(maxsize=32)
def _key(secret: Secret) -> tuple[bytes, Any, Any]:
    """
    Return how forms under `secret` begin, and the two hashes of their HMAC (RFC 2104).

    Both have read the key that is derived from `secret`: OpenSSL needs four times as long for an
    HMAC that is begun anew.
    """
    # As salted_hmac() of Django derives it, with this salt, the value "key" and SHA-256.
    salted = Secret(hashlib.sha256(_SALT + _bytes_of(secret)).digest())
    key = Secret(hmac.digest(salted.value, b"key", "sha256"))
    head = bytes((VERSION,)) + hmac.digest(key.value, b"id", "sha256")[:3]
    block = Secret(key.value.ljust(64, b"\0"))
    inner, outer = [hashlib.sha256(bytes(it ^ pad for it in block.value)) for pad in (0x36, 0x5C)]
    return head, inner, outer


def _bytes_of(secret: Secret) -> bytes:
    if isinstance(secret.value, str):
        return secret.value.encode(errors="surrogatepass")
    return cast("bytes", secret.value)


# A number becomes {"#": "1.00"}, as written; a member's name that starts with "#" gets a second
# "#", so nothing that a client sends can look like a number that it is not.


class _Numbers(dict[str, dict[str, str]]):
    """The numbers of one text as written, each once: a body may repeat one a million times."""

    def __missing__(self, text: str) -> dict[str, str]:
        number = self[text] = {"#": text}
        return number


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = {"#" + name if name[:1] == "#" else name: value for name, value in pairs}
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
